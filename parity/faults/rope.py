"""What goes wrong with rotary positions: which pairs turn, from where, and by which base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.head_rows import halves_first, keys_by, pairs_first, rows_moved
from lockstep.parity.faults.rewrites import changed_input, either, instead, only, rewrite
from lockstep.parity.faults.rotations import (
    angles_of_neighbours,
    backwards,
    half_negated,
    halves_of_pairs,
    neighbours,
    overwritten,
)
from lockstep.parity.faults.turns import (
    POSITIONS,
    Turns,
    X,
    has_two_bases,
    in_half,
    shifted,
    times,
    turning,
)
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import accumulator, dtype_named, rounded

QUERIES, KEYS = r"self_attn\.q_rope", r"self_attn\.k_rope"
HALVES = ("bfloat16", "float16")
ROUNDINGS = {name: in_half(name) for name in HALVES}


def of_base(theta: float) -> Rewrite:
    """Take another base. Where it is that of the other kind of layers, that is another entry."""

    def change(turns: Turns, config: Any) -> Turns | None:
        if has_two_bases(config) and theta in (config.rope_theta, config.global_rope_theta):
            return None
        return turns.other(theta=theta)

    return turning(change)


def by_power(power: float) -> Rewrite:
    """Take a power of the right base, as other exponents have it."""
    return turning(lambda turns, config: turns.other(theta=turns.options["theta"] ** power))


def by_derived_width(turns: Turns, config: Any) -> Turns | None:
    """Divide the exponents by hidden_size / heads, where that is not the width of a head."""
    derived, dims = config.hidden_size / config.num_attention_heads, turns.options["dims"]
    if derived == dims:
        return None
    return turns.other(theta=turns.options["theta"] ** (dims / derived))


def counted_to_one(turns: Turns, config: Any) -> Turns | None:
    """Let the exponents end at 1, as of a `linspace` from 0 to 1: 2j / (D - 2)."""
    dims, theta = turns.options["dims"], turns.options["theta"]
    return turns.other(theta=theta ** (dims / (dims - 2))) if dims > 2 else None


def counted_from_one(turns: Turns, config: Any) -> Turns:
    """Give pair j the exponent of the next one."""
    return turns.then(times(turns.options["theta"] ** (-2 / turns.options["dims"])))


def of_other_kind(*, full: bool, sliding: bool) -> Rewrite:
    """Give layers of these kinds the base of the other kind."""

    def change(turns: Turns, config: Any) -> Turns | None:
        if not has_two_bases(config):
            return None
        if turns.by("proportional"):
            return turns.other(theta=config.rope_theta) if full else None
        return turns.other(theta=config.global_rope_theta) if sliding else None

    return turning(change)


def across_heads(call: Call, graph: Graph) -> Call:
    """Take the number of the head for the position: the axes were not exchanged yet.

    Its entry comes before those that change positions, since those then change what this counts.
    """

    batch, count = graph.input_shape(call, X)[:2]
    new = call.with_changed(POSITIONS, lambda ops, at: np.arange(count)[None].repeat(batch, axis=0))
    new = new.with_changed(X, lambda ops, x: x.swapaxes(1, 2))
    return replace(new, after=(lambda ops, turned: turned.swapaxes(1, 2), *new.after))


def still(call: Call, graph: Graph) -> Call:
    """Leave every token at position 0, and its length as it is."""
    return call.with_changed(POSITIONS, lambda ops, at: at * 0).with_options(factor=1.0)


def turned_twice(ops: Any, x: Any, at: Any, by: Any, **options: Any) -> Any:
    return ops.rope(ops.rope(x, at, by, **options), at, by, **options)


def rounded_angles(name: str) -> Callable[..., Any]:
    """Round positions, frequencies and their product to half precision."""

    def wrong(ops: Any, x: Any, positions: Any, frequencies: Any, *, factor: float) -> Any:
        batch, heads, length, width = x.shape
        narrow = in_half(name)
        angles = narrow(
            narrow(positions)[..., None] * narrow(np.broadcast_to(
                frequencies[..., None, :] if frequencies.ndim == 2 else frequencies,
                (batch, length, width // 2),
            ))
        )  # fmt: skip
        rows = x.swapaxes(1, 2).reshape(batch * length, heads, 1, width)
        ones = np.ones((batch * length, 1), int)
        turned = ops.rope(rows, ones, angles.reshape(batch * length, -1), factor=factor)
        return turned.reshape(batch, length, heads, width).swapaxes(1, 2)

    return wrong


def rounded_tables(*names: str) -> Callable[..., Any]:
    """Round cosines and sines to half precision, of one kind or then another; carry on wider."""

    def wrong(ops: Any, x: Any, positions: Any, frequencies: Any, *, factor: float) -> Any:
        work = accumulator(x.dtype)
        turns = frequencies.astype(np.float32)  # as nearly all have them, before half precision
        angle = positions[:, None, :, None].astype(np.float32) * turns[..., None, None, :]
        tables = [(factor * wave(angle)).astype(np.float32) for wave in (np.cos, np.sin)]
        for name in names:
            tables = [table.astype(dtype_named(name)) for table in tables]
        cos, sin = (table.astype(work) for table in tables)
        first, second = np.split(x.astype(work, copy=False), 2, axis=-1)
        turned = first * cos - second * sin, second * cos + first * sin
        return rounded(np.concatenate(turned, axis=-1), x.dtype)

    return wrong


def has_values_of_its_own(call: Call, graph: Graph) -> bool:
    """Tell whether keys may be reordered: not where they are the values too."""
    config = graph.config
    return call.layer is None or not hasattr(config, "has_values") or config.has_values(call.layer)


@rewrite("rms_norm", r"self_attn\.[qk]_norm")
def gains_in_pairs(call: Call, graph: Graph) -> Call:
    """Order the gain of queries or keys as their rows are."""
    order = pairs_first(np.arange(graph.shapes[call.number][-1]), 1)
    return call.with_changed(1, lambda ops, gain: gain[order])


FAULTS = (
    Fault(
        id="rope-pairing-swapped",
        wrong="number 2j of a head turns with number 2j + 1",
        right="number j of a head turns with number j + D/2",
        symptom="the first token is exact, then text that starts well and falls apart",
        where="self_attn.q_rope",
        fix="rotate the two halves of each head (x[..., :D/2], x[..., D/2:]), not even and odd "
        "places; only weights that were reordered for it want neighbours",
        evidence=("jzhang38/TinyLlama#24", "huggingface/candle#3411", "lablup/mlxcel#931"),
        variants={
            "": rewrite("rope")(neighbours),
            "in the angles alone": instead("rope", angles_of_neighbours),
            "halves, of rows in pairs": rewrite("rope")(halves_of_pairs),
        },
    ),
    Fault(
        id="consistent-qk-permutation",
        wrong="rows of q and k lie in pairs, and pairs (2j, 2j + 1) turn",
        right="rows of q and k lie in halves, and pairs (j, j + D/2) turn",
        symptom="none: every score is the same",
        where="self_attn.q_proj",
        fix="nothing is broken; compare behind the scores, or undo the order of the rows first",
        evidence=("ggml-org/llama.cpp#7481",),
        convention=True,
        variants={
            "": only(
                has_values_of_its_own,
                either(
                    rows_moved(lambda rows, heads, queries: pairs_first(rows, heads)),
                    gains_in_pairs,
                    rewrite("rope")(neighbours),
                ),
            )
        },
        whole=("",),
    ),
    Fault(
        id="rope-unpermute-gqa",
        wrong="rows of k (or q) reordered by a number of heads that is not theirs, or not put back",
        right="rows of k are ordered within each of its own heads",
        symptom="garbage from models whose keys have fewer heads than queries; others are right",
        where="self_attn.k_proj",
        fix="reorder q by num_attention_heads and k by num_key_value_heads, once in each direction",
        evidence=(
            "ggml-org/llama.cpp#3364",
            "ggml-org/llama.cpp#2376",
            "huggingface/transformers#31788",
        ),
        variants={
            "keys put back by the number of query heads": keys_by(lambda heads, queries: queries),
            "keys put back by query heads a key head": keys_by(
                lambda heads, queries: queries // heads
            ),
            "keys ordered by the number of query heads": rows_moved(
                lambda rows, heads, queries: (
                    None
                    if heads == queries
                    else pairs_first(rows, queries)[halves_first(rows, heads)]
                )
            ),
            "left in pairs": rows_moved(lambda rows, heads, queries: pairs_first(rows, heads)),
            "put back though they never were in pairs": rows_moved(
                lambda rows, heads, queries: halves_first(rows, heads)
            ),
            "left in pairs, and put in pairs again": rows_moved(
                lambda rows, heads, queries: pairs_first(pairs_first(rows, heads), heads)
            ),
            "put back twice": rows_moved(
                lambda rows, heads, queries: halves_first(halves_first(rows, heads), heads)
            ),
        },
    ),
    Fault(
        id="rope-axis-mixup",
        wrong="head h of every token turns by h f",
        right="every head of token p turns by p f",
        symptom="nothing usable",
        where="self_attn.q_rope",
        fix="bring heads before tokens, (B, H, L, D), or tell the kernel which axis counts",
        evidence=("lablup/mlxcel#1688", "ml-explore/mlx-lm#1606"),
        variants={"": rewrite("rope")(across_heads)},
    ),
    Fault(
        id="rope-pos-starts-at-1",
        wrong="positions 1 .. L, for queries and keys alike",
        right="positions 0 .. L - 1",
        symptom="none: scores depend on differences of positions alone",
        where="self_attn.q_rope",
        fix="harmless as long as everything counts the same way; start at 0 to compare q and k",
        evidence=("InfiniTensor/InfiniLM#388",),
        convention=True,
        variants={"": changed_input("rope", POSITIONS, shifted(1))},
    ),
    Fault(
        id="rope-query-position-shifted",
        wrong="queries turn by p + 1 and keys by p, or the other way",
        right="queries and keys turn by the same p",
        symptom="every token seems one step away from where it is",
        where="self_attn.q_rope",
        fix="hand the same positions to the rotation of queries and of keys",
        variants={
            "queries one late": changed_input("rope", POSITIONS, shifted(1), QUERIES),
            "keys one late": changed_input("rope", POSITIONS, shifted(1), KEYS),
            "queries one early": changed_input("rope", POSITIONS, shifted(-1), QUERIES),
            "keys one early": changed_input("rope", POSITIONS, shifted(-1), KEYS),
        },
    ),
    Fault(
        id="rope-theta-default",
        wrong="a base that is not the model's, 10000 as a rule",
        right="base rope_theta of the config",
        symptom="short prompts are fine, quality falls with length",
        where="self_attn.q_rope",
        fix="read rope_theta from the config (newer files: in rope_parameters); pair j has the "
        "exponent 2j / D",
        evidence=(
            "deepspeedai/DeepSpeed#8345",
            "huggingface/candle#2723",
            "sgl-project/sglang#14745",
        ),
        variants={
            "base 10000": of_base(10_000.0),
            "base 500000": of_base(500_000.0),
            "base 1000000": of_base(1_000_000.0),
            "exponents j / D for 2j / D: the root of the base": by_power(0.5),
            "exponents 4j / D for 2j / D: the square of the base": by_power(2.0),
            "exponents 2j / (D - 2): counted to 1": turning(counted_to_one),
            "exponents 2(j + 1) / D: counted from pair 1": turning(counted_from_one),
            "exponents over hidden_size / heads for the head's width": turning(by_derived_width),
        },
    ),
    Fault(
        id="rope-local-global-theta",
        wrong="layers turn with the base of the other kind of layers",
        right="sliding layers by rope_theta, full layers by the base of full attention",
        symptom="text loses its thread after a few hundred tokens",
        where="self_attn.q_rope of the first layer of that kind",
        fix="choose the base by the kind of the layer (rope_parameters has one for each)",
        evidence=("huggingface/candle#2917", "huggingface/candle#2918", "antonellof/ferrox#65"),
        variants={
            "full layers turn as sliding ones": of_other_kind(full=True, sliding=False),
            "sliding layers turn as full ones": of_other_kind(full=False, sliding=True),
            "exchanged": of_other_kind(full=True, sliding=True),
        },
    ),
    Fault(
        id="rope-missing-on-layer-kind",
        wrong="queries or keys are not turned",
        right="every layer turns queries and keys",
        symptom="word order means nothing; short prompts may pass",
        where="self_attn.q_rope",
        fix="rotate queries and keys in every layer, both",
        evidence=("vllm-project/vllm#30413",),
        variants={"": rewrite("rope")(still)},
    ),
    Fault(
        id="rope-inv-freq-half",
        wrong="frequencies (or angles too) rounded to half precision",
        right="angles in float32 or wider",
        symptom="fine for a hundred tokens, worse with each further one",
        where="self_attn.q_rope",
        fix="keep inv_freq and positions in float32: a cast of the whole model takes buffers along",
        evidence=(
            "EleutherAI/gpt-neox#1003",
            "huggingface/transformers#25681",
            "huggingface/transformers#29496",
            "sgl-project/sglang-jax#1472",
        ),
        variants={
            **{
                f"frequencies in {name}": turning(
                    lambda turns, config, name=name: turns.then(ROUNDINGS[name])
                )
                for name in HALVES
            },
            **{f"angles in {name}": instead("rope", rounded_angles(name)) for name in HALVES},
        },
    ),
    Fault(
        id="rope-cos-sin-half",
        wrong="tables of cosines and sines in half precision, in a model that is not",
        right="tables in the dtype of the products",
        symptom="none to see: an error of 2e-3 that does not grow",
        where="self_attn.q_rope",
        fix="make the tables in float32 and cast behind the products",
        evidence=("https://unsloth.ai/blog/gemma-bugs", "ml-explore/mlx#1797"),
        coarse=True,
        variants={
            **{f"in {name}": instead("rope", rounded_tables(name)) for name in HALVES},
            "in float16, then bfloat16": instead("rope", rounded_tables(*reversed(HALVES))),
        },
    ),
    # What follows turns by the operation it finds, so it stands behind what replaces that.
    Fault(
        id="rope-sign-flipped",
        wrong="the angle is -p f, or of one half alone",
        right="the angle is p f",
        symptom="degraded text; the first token is exact",
        where="self_attn.q_rope",
        fix="rotate_half is (-x2, x1): out1 = x1 cos - x2 sin, out2 = x2 cos + x1 sin",
        variants={
            "": instead("rope", backwards),
            "neither half is negated": instead("rope", half_negated(first=False, second=False)),
            "both halves are negated": instead("rope", half_negated(first=True, second=True)),
        },
    ),
    Fault(
        id="rope-half-overwritten",
        wrong="a = a cos - b sin; b = b cos + a sin, of the a that has turned already",
        right="both halves are made of both as they were",
        symptom="degraded text; the first token is exact",
        where="self_attn.q_rope",
        fix="keep the first half before it is written over",
        variants={
            "the second half": instead("rope", overwritten(first=True)),
            "the first half": instead("rope", overwritten(first=False)),
        },
    ),
    Fault(
        id="rope-applied-twice",
        wrong="rope(rope(q)), of queries, of keys, or of both",
        right="rope(q), rope(k)",
        symptom="worse with every position",
        where="self_attn.q_rope",
        fix="turn queries and keys once: in the projection's code, or in the attention's",
        variants={
            "": instead("rope", turned_twice),
            "queries alone": instead("rope", turned_twice, QUERIES),
            "keys alone": instead("rope", turned_twice, KEYS),
        },
    ),
)
