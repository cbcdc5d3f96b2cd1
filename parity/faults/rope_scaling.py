"""What goes wrong with stretched and partial rotary positions: how fast each pair turns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.by_length import by_lengths
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.listed_divisors import is_listed
from lockstep.parity.faults.rewrites import only, option, rewrite
from lockstep.parity.faults.turns import (
    FREQUENCIES,
    PLAIN,
    PROPORTIONAL,
    Turns,
    X,
    has_two_bases,
    of_kind,
    rearranged,
    times,
    turning,
    turns_of,
)
from lockstep.parity.graph import Call, Graph
from lockstep.reference.ops.rope_frequencies import rope_frequencies


def proportional_everywhere(turns: Turns, config: Any) -> Turns | None:
    if not has_two_bases(config) or turns.op != PLAIN:
        return None
    options = {**turns.options, "partial_rotary_factor": config.partial_rotary_factor}
    return replace(turns, op=PROPORTIONAL, options=options)


def of_length(times: float | str) -> Callable[[Turns, Any], Turns]:
    """Return the change to the base of one length for all texts: so many times M, or an option's.

    vLLM takes s M; a port that was not told of shorter texts keeps the base of an earlier one.
    """

    def changed(turns: Turns, config: Any) -> Turns:
        options = turns.options
        factor, dims = options["factor"], options["dims"]
        longest = options[times] if isinstance(times, str) else times
        growth = factor * longest - (factor - 1)
        return turns.plain.other(theta=options["theta"] * growth ** (dims / (dims - 2)))

    return changed


def pairs_that_turn(turns: Turns) -> int:
    return int(turns.options["partial_rotary_factor"] * turns.options["dims"] // 2)


def of_narrow_head(*, theta: float, dims: int, partial_rotary_factor: float) -> Any:
    """Divide the exponents by the width that turns, not by the head's."""
    count = int(partial_rotary_factor * dims // 2)
    pairs = np.arange(dims // 2)
    return np.where(pairs < count, theta ** (-2.0 * pairs / max(2 * count, 1)), 0.0)


def narrow_halves(call: Call, graph: Graph) -> Call | None:
    """Pair j with j + r/2, where r is the width that turns."""
    turns = turns_of(call, graph)
    if not turns.by("proportional") and turns.op is not of_narrow_head:
        return None
    count, places = pairs_that_turn(turns), np.arange(graph.input_shape(call, X)[-1])
    half = len(places) // 2
    if not 0 < count < half:
        return None
    parts = places[:count], places[2 * count : half + count], places[count : 2 * count]
    return rearranged(call, np.concatenate([*parts, places[half + count :]]))


def narrow_head(call: Call, graph: Graph) -> Call | None:
    """Turn the first numbers of a head as if they were the whole head."""
    paired = narrow_halves(call, graph)
    return None if paired is None else of_narrow_widths(paired, graph)


def usual(stretch: float) -> float:
    """Return what YaRN multiplies cosines and sines by, unless the config names another number."""
    return 0.1 * math.log(stretch) + 1


def usual_factor(call: Call, graph: Graph) -> float | None:
    """Return that where YaRN stretches positions."""
    source = graph.source(call, FREQUENCIES)
    if source.op != "rope_frequencies_yarn":
        return None
    return usual(source.options["factor"])


@rewrite("rope")
def always_usual(call: Call, graph: Graph) -> Call | None:
    usual = usual_factor(call, graph)
    same = usual is None or math.isclose(usual, call.options["factor"])
    return None if same else call.with_options(factor=usual)


def by_logarithm(base: int) -> Rewrite:
    """Take another logarithm than the natural one."""

    def factor(call: Call, graph: Graph) -> Call | None:
        natural = usual_factor(call, graph)
        if natural is None:
            return None
        return call.with_options(factor=(natural - 1) / math.log(base) + 1)

    return rewrite("rope")(factor)


@rewrite("rope")
def by_lone_mscale(call: Call, graph: Graph) -> Call | None:
    """Count an `mscale` that stands without `mscale_all_dim`, as mlx-lm does."""
    scaling = getattr(graph.config, "rope_scaling", None)
    if usual_factor(call, graph) is None or scaling is None or scaling.lone_mscale is None:
        return None
    return call.with_options(factor=0.1 * scaling.lone_mscale * math.log(scaling.factor) + 1)


@rewrite("rope")
def by_both_lengths(call: Call, graph: Graph) -> Call | None:
    """Stretch by the longer length over the original one, whatever the config's factor says."""
    source = graph.source(call, FREQUENCIES)
    if source.op != "rope_frequencies_longrope":
        return None
    original = source.options["original_max_position_embeddings"]
    stretch = max(graph.config.max_position_embeddings / original, 1.0)
    factor = math.sqrt(1 + math.log(stretch) / math.log(original))
    same = math.isclose(factor, call.options["factor"])
    return None if same else call.with_options(factor=factor)


def with_source(kind: str, change: Rewrite) -> Rewrite:
    """Do it where positions are stretched in one way."""
    operation = f"{PLAIN}_{kind}"
    return only(
        lambda call, graph: call.op == "rope"
        and graph.source(call, FREQUENCIES).op == operation, change,
    )  # fmt: skip


def grown_without_offset(
    lengths: Any, *, theta: float, dims: int, factor: float, original_max_position_embeddings: int
) -> Any:
    """Let the base grow by s T / M, without taking s - 1 off."""
    beyond = np.maximum(lengths, original_max_position_embeddings)
    growth = np.where(
        lengths > original_max_position_embeddings,
        factor * beyond / original_max_position_embeddings, 1.0,
    )  # fmt: skip
    base = theta * growth ** (dims / (dims - 2))
    return base[:, None] ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)


def ends_swapped(turns: Turns, config: Any) -> Turns:
    """Blend from the other end, those too that are not blended: YaRN's ramp the other way round."""
    plain = rope_frequencies(**turns.plain.options)
    return turns.then(lambda found: plain + plain / turns.options["factor"] - found)


of_narrow_widths = of_kind("proportional", lambda turns, config: replace(turns, op=of_narrow_head))

FAULTS = (
    Fault(
        id="rope-scaling-on-local-layers",
        wrong="the stretched or partial frequencies of full layers on sliding layers too",
        right="sliding layers turn whole heads by plain frequencies",
        symptom="near tokens are hard to tell apart",
        where="self_attn.q_rope of sliding layers",
        fix="give the scaling to full layers alone",
        evidence=("ml-explore/mlx-lm#664",),
        variants={"": turning(proportional_everywhere)},
    ),
    Fault(
        id="rope-global-linear-scale-missing",
        wrong="angle = p f",
        right="angle = p f / factor",
        symptom="text differs only where prompts are long",
        where="self_attn.q_rope",
        fix="divide positions (or frequencies) by the factor of rope_scaling",
        evidence=("Blaizzy/mlx-vlm#1709", "Blaizzy/mlx-vlm@ea2456d1"),
        variants={"": of_kind("linear", lambda turns, config: turns.plain)},
    ),
    Fault(
        id="rope-linear-scale-inverted",
        wrong="angle = p f factor",
        right="angle = p f / factor",
        symptom="garbage after a few tokens",
        where="self_attn.q_rope",
        fix="divide by the factor; MLX's `scale` is its reciprocal",
        variants={
            "": of_kind(
                "linear",
                lambda turns, config: turns.plain.then(times(turns.options["factor"])),
            )
        },
    ),
    Fault(
        id="rope-yarn-scaling-missing",
        wrong="plain frequencies, or all of them divided by the factor",
        right="a ramp between kept and divided frequencies (YaRN)",
        symptom="long prompts fall apart",
        where="self_attn.q_rope",
        fix="implement rope_type yarn with its own beta_fast, beta_slow and original length",
        variants={
            "not at all": of_kind("yarn", lambda turns, config: turns.plain),
            "every pair divided": of_kind(
                "yarn",
                lambda turns, config: turns.plain.then(times(1 / turns.options["factor"])),
            ),
            "the ramp the other way round": of_kind("yarn", ends_swapped),
            "bounds rounded, or not": of_kind(
                "yarn", lambda turns, config: turns.other(truncate=not turns.options["truncate"])
            ),
            "by the longer length": of_kind(
                "yarn",
                lambda turns, config: turns.other(
                    original_max_position_embeddings=config.max_position_embeddings
                ),
            ),
        },
    ),
    Fault(
        id="rope-yarn-attn-factor",
        wrong="cosines and sines times another factor: none, the usual one, its square, one"
        " by another logarithm, or one that counts mscale alone",
        right="cosines and sines times attention_factor, 0.1 ln(s) + 1 if the config has none",
        symptom="fluent, but prompts are followed badly; every position shows it",
        where="self_attn.q_rope",
        fix="multiply cos and sin by attention_factor of the config, on queries and keys, once",
        evidence=(
            "ml-explore/mlx-lm#1507",
            "vllm-project/vllm#48623",
            "turboderp-org/exllamav3#259",
        ),
        variants={
            "never": with_source("yarn", option("rope", "factor", lambda factor: 1.0)),
            "always 0.1 ln(s) + 1": always_usual,
            **{f"always 0.1 log{base}(s) + 1": by_logarithm(base) for base in (2, 10)},
            "mscale counts alone": by_lone_mscale,
            "twice": with_source("yarn", option("rope", "factor", lambda factor: factor**2)),
        },
    ),
    Fault(
        id="rope-longrope-always-long",
        wrong="one table of divisors for every length, or none, or that of another length",
        right="short_factor up to the original length, long_factor beyond it",
        symptom="slightly worse text at some lengths",
        where="self_attn.q_rope",
        fix="choose the table anew in every step, by the whole length of the text so far; keys in "
        "the cache stay as they are",
        evidence=("ml-explore/mlx-lm#660", "ml-explore/mlx-swift-lm#16"),
        variants={
            "always long": of_kind(
                "longrope",
                lambda turns, config: turns.other(short_factor=turns.options["long_factor"]),
            ),
            "always short": of_kind(
                "longrope",
                lambda turns, config: turns.other(long_factor=turns.options["short_factor"]),
            ),
            "neither": of_kind(
                "longrope", lambda turns, config: None if is_listed(turns) else turns.plain
            ),
            **by_lengths("longrope"),
        },
    ),
    Fault(
        id="rope-longrope-mscale",
        wrong="cosines and sines times 1, the square, or what max_position_embeddings would give",
        right="cosines and sines times sqrt(1 + ln(s) / ln(original length))",
        symptom="mildly degraded text at every length",
        where="self_attn.q_rope",
        fix="multiply cos and sin (and nothing else) by the attention factor, once",
        evidence=("ml-explore/mlx-lm@b8bbbca6", "ml-explore/mlx-lm@525f08af"),
        variants={
            "never": with_source("longrope", option("rope", "factor", lambda factor: 1.0)),
            "twice": with_source("longrope", option("rope", "factor", lambda factor: factor**2)),
            "by both lengths": by_both_lengths,
        },
    ),
    Fault(
        id="rope-dynamic-ntk",
        wrong="the base does not grow with the text, or grows by another rule or another length; "
        "or it is that of the longest text",
        right="base (s T / M - (s - 1))^(D / (D - 2)) for T tokens beyond M",
        symptom="fine up to max_position_embeddings, broken beyond",
        where="self_attn.q_rope",
        fix="compute the base anew in every step, from the length of the text so far, once that "
        "exceeds the original one; keys in the cache stay as they are",
        evidence=("ml-explore/mlx-lm#1606",),
        variants={
            "never": of_kind("dynamic", lambda turns, config: turns.plain),
            "growth s T / M": of_kind(
                "dynamic", lambda turns, config: replace(turns, op=grown_without_offset)
            ),
            "base times s": of_kind(
                "dynamic",
                lambda turns, config: turns.plain.other(
                    theta=turns.options["theta"] * turns.options["factor"]
                ),
            ),
            "one base for all texts, of s M tokens": of_kind("dynamic", of_length("factor")),
            "one base for all texts, of 2 M tokens": of_kind("dynamic", of_length(2.0)),
            **by_lengths("dynamic"),
        },
    ),
    Fault(
        id="rope-proportional-missing",
        wrong="the whole head turns, or its first part as if it were a head of its own",
        right="frequencies of the whole head, zero beyond partial_rotary_factor; halves at D/2",
        symptom="together with other bugs, dashes and spaces",
        where="self_attn.q_rope of full layers",
        fix="keep the exponent 2j / D and the pairs (j, j + D/2); set the frequencies beyond "
        "partial_rotary_factor * D / 2 to zero",
        evidence=("Blaizzy/mlx-vlm#901",),
        variants={
            "the whole head turns": of_kind("proportional", lambda turns, config: turns.plain),
            "a narrower head": rewrite("rope")(narrow_head),
            "halves of the part that turns": rewrite("rope")(narrow_halves),
        },
    ),
    Fault(
        id="rope-partial-denominator",
        wrong="exponent 2j / r, where r is the width that turns",
        right="exponent 2j / D, where D is the width of the head",
        symptom="quality falls with length; position 0 is exact",
        where="self_attn.q_rope",
        fix="divide the exponent by what the reference divides it by: here the whole head",
        evidence=("pie-project/pie#603",),
        variants={"": of_narrow_widths},
    ),
)
