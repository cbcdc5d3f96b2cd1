"""What goes wrong with single numbers: right arithmetic with a constant of another value.

Which value cannot be listed. So these classes, and some of other files, have `NUMBERS` that
`explain` fits to what the port dumped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.activations import ANY
from lockstep.parity.faults.adapter_layers import FACTORS
from lockstep.parity.faults.blockwise import BLOCKS
from lockstep.parity.faults.dropped_tokens import capacity
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.mask import MASK, seeing, sight_of, windowed
from lockstep.parity.faults.masked_scores import barred, lowered, set_to
from lockstep.parity.faults.number import Number, bound_of_none, option_of
from lockstep.parity.faults.rewrites import NORMS, afterwards, only
from lockstep.parity.faults.rings import slots_of_buffer
from lockstep.parity.faults.rope_scaling import usual, usual_factor
from lockstep.parity.faults.routers import ROUTING, so_many
from lockstep.parity.faults.so_many_tokens import begun_anew, first_in_sight, rest_unread
from lockstep.parity.faults.turns import (
    FREQUENCIES,
    PLAIN,
    PROPORTIONAL,
    Turns,
    times,
    turning,
    turns_of,
)
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.call import EXPERTS

UNSTRETCHED = (PLAIN, PROPORTIONAL)
LENGTHENED = ("rope_frequencies_yarn", "rope_frequencies_longrope")  # with a factor of their own


def of_turns(name: str, form: str, within: tuple[float, float]) -> Number:
    """Return the number that frequencies are made from."""

    def right(call: Call, graph: Graph) -> float | None:
        return turns_of(call, graph).options.get(name) if call.op == "rope" else None

    def becomes(value: float) -> Rewrite:
        def other(turns: Turns, config: Any) -> Turns | None:
            return turns.other(**{name: value}) if name in turns.options else None

        return turning(other)

    return Number(form, right, becomes, within)


def yarn_factor() -> Number:
    """Return the factor that also says what cosines and sines are multiplied by."""
    blend = of_turns("factor", "factor {}, in cosines and sines too", (1.05, 256.0))

    def right(call: Call, graph: Graph) -> float | None:
        wanted = usual_factor(call, graph) if call.op == "rope" else None
        if wanted is None or not math.isclose(call.options["factor"], wanted):
            return None
        return blend.right(call, graph)

    def becomes(value: float) -> Rewrite:
        def other(call: Call, graph: Graph) -> Call | None:
            new = None if right(call, graph) is None else blend.becomes(value)(call, graph)
            return None if new is None else new.with_options(factor=usual(value))

        return other

    return replace(blend, right=right, becomes=becomes)


def stretch_of_none() -> Number:
    """Return what positions are divided by where the model does not stretch them."""

    def right(call: Call, graph: Graph) -> float | None:
        return 1.0 if call.op == "rope" and turns_of(call, graph).op in UNSTRETCHED else None

    def becomes(value: float) -> Rewrite:
        def other(turns: Turns, config: Any) -> Turns | None:
            return turns.then(times(1 / value)) if turns.op in UNSTRETCHED else None

        return turning(other)

    return Number("positions divided by {}", right, becomes, (1 / 16, 256.0))


def part_that_turns() -> Number:
    """Return the share of a head that turns: so many pairs of it."""

    def pairs(call: Call, graph: Graph) -> list[float]:
        half = turns_of(call, graph).options["dims"] // 2
        return [pair / half for pair in range(1, half + 1)]

    found = of_turns("partial_rotary_factor", "partial_rotary_factor {}", (0.0, 0.0))
    return replace(found, among=pairs)


def numbers_that_turn(form: str, *, as_whole: bool) -> Number:
    """Return how many numbers of a head turn where all should: the first ones, among themselves.

    Their frequencies are those of so wide a head, or the first ones of the whole head's.
    """

    def right(call: Call, graph: Graph) -> float | None:
        turns = turns_of(call, graph) if call.op == "rope" else None
        return turns.options["dims"] if turns is not None and turns.op == PLAIN else None

    def fewer(call: Call, graph: Graph) -> range:
        return range(2, turns_of(call, graph).options["dims"], 2)

    def becomes(value: float) -> Rewrite:
        width = int(value)
        narrow = turning(lambda turns, config: turns.other(dims=width))
        cut = turning(lambda turns, config: turns.then(lambda found: found[..., : width // 2]))
        of_so_many = cut if as_whole else narrow

        def first_alone(ops: Any, x: Any, at: Any, by: Any, *, factor: float) -> Any:
            turned = ops.rope(x[..., :width], at, by, factor=factor)
            return np.concatenate([turned, x[..., width:]], axis=-1)

        def other(call: Call, graph: Graph) -> Call | None:
            new = None if right(call, graph) is None else of_so_many(call, graph)
            return None if new is None else new.replaced(first_alone)

        return other

    return Number(form, right, becomes, among=fewer, is_alone=as_whole)


def window_of(call: Call, graph: Graph) -> float | None:
    """Return how many keys a call of softmax sees at most, None where that has no end."""
    sight = sight_of(call, graph) if call.op == "softmax" else None
    return None if sight is None else sight.window


def windows(call: Call, graph: Graph) -> range:
    """Return every window that hides anything of the prompt."""
    return range(1, graph.shapes[graph.source(call, MASK).number][-1])


def no_window(call: Call, graph: Graph) -> float | None:
    """Return what a window is where there is none: it is beyond any prompt."""
    sight = sight_of(call, graph) if call.op == "softmax" else None
    return math.inf if sight is not None and sight.window is None else None


def ending(window: float) -> Rewrite:
    return seeing(window=int(window) if math.isfinite(window) else None)


def usual_windows(call: Call, graph: Graph) -> Sequence[int]:
    """Return the windows that models have, of those that hide anything of the prompt."""
    return [one for one in USUAL if one < graph.shapes[graph.source(call, MASK).number][-1]]


def experts_of(call: Call, graph: Graph) -> range:
    """Return every number of experts; what computes them has the routing (B, L, E) behind x."""
    routing = call if call.op == ROUTING else graph.source(call, 1)
    return range(1, graph.shapes[routing.number][-1] + 1)


def of_long_texts(call: Call, graph: Graph) -> float | None:
    """Return what cosines and sines are multiplied by where positions are stretched."""
    if call.op != "rope" or graph.source(call, FREQUENCIES).op not in LENGTHENED:
        return None
    return call.options["factor"]


def cap_of_none(call: Call, graph: Graph) -> float | None:
    """Return the cap of logits that have none: it is beyond any number."""
    of_head = call.op == "linear" and call.place == "lm_head"
    return math.inf if of_head and all(one.op != "softcap" for one in graph.calls) else None


def capped(op: str, *places: str) -> Callable[[float], Rewrite]:
    """Return how what an operation gives comes to have a cap."""

    def by(cap: float) -> Rewrite:
        cut = afterwards(op, lambda ops, x: ops.softcap(x, cap=cap), *places)
        return only(lambda call, graph: math.isfinite(cap), cut)

    return by


def shares_of_experts() -> Number:
    def right(call: Call, graph: Graph) -> float | None:
        return 1.0 if call.op == ROUTING else None

    form, within = "the weights of experts times {}", (1e-3, 1e2)
    return Number(
        form, right, lambda by: afterwards(ROUTING, multiplied(by)), within, is_factor=True
    )


def multiplied(by: float) -> Callable[[Any, Any], Any]:
    return lambda ops, x: x * x.dtype.type(by)


def clamped(most: float) -> Rewrite:
    return afterwards(ANY, lambda ops, x: np.minimum(x, x.dtype.type(most)))


USUAL = [2**power for power in range(3, 18)]
COSINES = option_of("rope", "factor", "cosines and sines times {}", within=(0.1, 10.0))

NUMBERS: Mapping[str, tuple[Number, ...]] = {
    "rms-eps-wrong": (option_of(NORMS, "eps", "eps = {}", within=(1e-12, 1.0)),),
    "rope-theta-default": (of_turns("theta", "base {}", (10.0, 1e9)),),
    "rope-stretch-wrong": (
        of_turns("factor", "factor {}", (0.5, 256.0)),
        stretch_of_none(),
        yarn_factor(),
        of_turns("low_freq_factor", "low_freq_factor {}", (0.1, 100.0)),
        of_turns("high_freq_factor", "high_freq_factor {}", (0.1, 100.0)),
        of_turns("beta_fast", "beta_fast {}", (1.0, 1e3)),
        of_turns("beta_slow", "beta_slow {}", (0.01, 100.0)),
        of_turns("original_max_position_embeddings", "original length {}", (4.0, 1e6)),
        part_that_turns(),
        numbers_that_turn("the first {} numbers of a head turn", as_whole=False),
        numbers_that_turn(
            "the first {} numbers of a head turn, by exponents of all of it", as_whole=True
        ),
        replace(COSINES, right=of_long_texts, is_factor=True),
    ),
    "attn-scale-wrong": (
        replace(option_of("attention_scores", "scale", "scores times {}", within=(1e-4, 1e2)),
                is_scale=True),
    ),
    "mask-window-wrong": (
        Number("a window of {} keys", window_of, lambda to: windowed(lambda w: int(to)),
               among=windows),
        Number("a window of {} keys", no_window, ending, among=usual_windows,
               is_quick=True),
        first_in_sight(),
    ),
    "rope-positions-begin-anew": (begun_anew(),),
    "mask-last-block-unread": (rest_unread(),),
    "softmax-blocks-mixed": BLOCKS,
    "mask-sentinel-too-small": (
        Number("lowered by {}", bound_of_none("softmax"), lambda to: barred(lowered(-to)),
               within=(1.0, 1e4)),
        Number("set to -{}", bound_of_none("softmax"), lambda to: barred(set_to(-to)),
               within=(0.1, 1e4)),
    ),
    "softcap-wrong": (
        option_of("softcap", "cap", "cap {}", within=(0.05, 1e4)),
        Number("cap {}", cap_of_none, capped("linear", "lm_head"), within=(0.05, 1e4)),
        Number("scores with a cap of {}", bound_of_none("attention_scores"),
               capped("attention_scores"), within=(0.05, 1e3)),
    ),
    "activation-clamped": (
        Number("at most {}", bound_of_none(*ANY), clamped, within=(1e-2, 1e3)),
    ),
    "multiplier-wrong": (
        replace(option_of("scale", "by", "times {}", within=(1e-4, 1e4)), is_factor=True),
        shares_of_experts(),
    ),
    "moe-top-k-wrong": (
        option_of((ROUTING, *EXPERTS), "per_token", "{} experts", among=experts_of),
    ),
    "moe-capacity-limited": (capacity(),),
    "kv-chunk-cache-trims-buffer": (slots_of_buffer(),),
    "lora-scale-wrong": (
        option_of(tuple(FACTORS), "scale", "times {}", within=(1e-4, 1e4)),
    ),
}  # fmt: skip


def examples(id: str) -> dict[str, Rewrite]:
    """Return of a class its numbers, each with another value."""
    return {
        one.form.format("twice the right" if one.among is None else "n"): one.other
        for one in NUMBERS.get(id, ())
    }


FAULTS = (
    Fault(
        id="attn-scale-wrong",
        wrong="scores = s' q k^T, s' another number",
        right="scores = s q k^T, s = 1 / sqrt(head_dim), or what the config says",
        symptom="attention too sharp or too flat; the first token is exact",
        where="self_attn.scores",
        fix="see where the port takes the scale of the scores from",
        variants={},
    ),
    Fault(
        id="mask-window-wrong",
        wrong="the window holds W' keys, W' another number, or the first tokens too",
        right="the window holds W keys, W = sliding_window of the config",
        symptom="right up to the window, wrong after it",
        where="self_attn.probs",
        fix="take the window from the config",
        variants={},
    ),
    Fault(
        id="mask-last-block-unread",
        wrong="keys behind the last whole block of n tokens are not seen",
        right="every key up to the query is seen",
        symptom="right for lengths that are a multiple of n, worse for all others",
        where="self_attn.o_proj",
        fix="let the kernel's last block be a short one, and mask what is beyond its end",
        variants={},
    ),
    Fault(
        id="softmax-blocks-mixed",
        wrong="blocks of n keys are put together without exp(the largest score before - now)",
        right="sums so far are multiplied by it, for the values and for the exponentials",
        symptom="right where one block holds all keys, or where the first holds the largest score",
        where="self_attn.o_proj",
        fix="rescale both sums when a block raises the largest score, and divide by the sum of all",
        variants={},
    ),
    Fault(
        id="rope-positions-begin-anew",
        wrong="position p mod n: each n tokens are counted from 0",
        right="position p, counted through the whole text",
        symptom="right up to n tokens, confused after them",
        where="self_attn.q_rope",
        fix="add to the positions of a chunk how many tokens were before it",
        variants={},
    ),
    Fault(
        id="activation-clamped",
        wrong="min(act(gate), c) * up",
        right="act(gate) * up",
        symptom="right but for the few tokens whose activations are large",
        where="mlp.act_fn",
        fix="clamp only where the architecture does (swiglu_limit)",
        variants={},
    ),
    Fault(
        id="softcap-wrong",
        wrong="logits = c' tanh(l / c'), c' another number; or scores so",
        right="logits = c tanh(l / c), c = final_logit_softcapping; l where there is none",
        symptom="greedy text is unchanged, probabilities are not; attention is flatter",
        where="logits, or self_attn.scores",
        fix="take the cap from the config",
        variants={},
    ),
    Fault(
        id="multiplier-wrong",
        wrong="m' x, m' another number",
        right="m x: the root of a width, one over it, or nothing at all, as the architecture says",
        symptom="all that follows is scaled",
        where="embed_tokens, router.proj, per_layer_inputs, the experts' output",
        fix="see where the port takes this multiplier from",
        variants={},
    ),
    Fault(
        id="rope-stretch-wrong",
        wrong="positions are stretched by another number than the config's",
        right="each number of rope_parameters (rope_scaling) as the config has it, or none",
        symptom="worse with distance, or beyond the original length",
        where="self_attn.q_rope",
        fix="read all of rope_parameters from the config; without them all of a head turns",
        variants={},
    ),
    Fault(
        id="moe-top-k-wrong",
        wrong="k' experts a token, k' another number",
        right="k experts a token, k of the config",
        symptom="text a little worse, or slower than it should be",
        where="the experts' output",
        fix="take the number of experts a token from the config",
        variants={
            "one expert": so_many(lambda right: 1),
            "two experts": so_many(lambda right: 2),
            "one expert fewer": so_many(lambda right: right - 1),
            "one expert more": so_many(lambda right: right + 1),
        },
    ),
    Fault(
        id="lora-scale-wrong",
        wrong="y + s' B A x, s' another number",
        right="y + s B A x, s = lora_alpha / r, or mlx-lm's scale",
        symptom="the adapter does too much or too little",
        where="the adapted projections",
        fix="take the scale from the adapter's config",
        variants={},
    ),
)  # fmt: skip
