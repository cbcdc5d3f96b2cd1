"""What goes wrong from the second call of a model on: its tokens, their places, what they see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.passes import Position, begins, numbered, repositioned
from lockstep.parity.faults.rewrites import either, rewrite
from lockstep.parity.faults.rotating import by_calls, counted_by_calls
from lockstep.parity.faults.slots import Asked, Held, in_chunks, remembering
from lockstep.parity.faults.turns import POSITIONS
from lockstep.parity.graph import Call, Graph

WPE = r"transformer\.wpe"
TABLES = (r"model\.embed_tokens", r"model\.embed_tokens_per_layer", r"transformer\.wte")


def counted(change: Callable[[Any, int], Any], *places: str, op: str) -> Rewrite:
    """Give steps other positions: `change(at, length of the prompt)`."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if not graph.steps:
            return None
        first = graph.steps[0]
        moved = repositioned(lambda at, begins, length: change(at, first), *places, op=op)
        return moved(call, graph)

    return rewritten


def positions(op: str, *places: str) -> dict[str, Rewrite]:
    """Return the ways to lose count in steps."""
    ways: dict[str, Callable[[Any, int], Any]] = {
        "at 0": lambda at, prompt: at * 0,
        "from 0 again": lambda at, prompt: at - prompt,
        "from 1 again": lambda at, prompt: at - prompt + 1,
        "at the prompt's length": lambda at, prompt: at * 0 + prompt,
        "at the prompt's last token": lambda at, prompt: at * 0 + prompt - 1,
        "one too early": lambda at, prompt: at - 1,
    }
    return {name: counted(way, *places, op=op) for name, way in ways.items()}


@rewrite("rope")
def by_calls_alone(call: Call, graph: Graph) -> Call | None:
    """Turn tokens as if each pass behind the prompt had been of one token."""
    if not graph.steps or not has_chunks(call, graph):
        return None
    edges = (0, *graph.steps)
    counts = np.array([counted_by_calls(edges, begin) for begin in edges])

    def moved(ops: Any, at: Any) -> Any:
        rows = at.shape[-1]
        return at - begins(graph, rows) + counts[numbered(graph, rows)]

    return call.with_changed(POSITIONS, moved)


def has_chunks(rope: Call, graph: Graph) -> bool:
    """Say whether some later pass is of several tokens."""
    passes = numbered(graph, graph.shapes[rope.number][2])
    return bool(np.bincount(passes)[1:].max(initial=0) > 1)


def with_chunks(where: Position) -> Rewrite:
    """Turn the tokens of later passes by other positions, if some later pass has several."""

    @rewrite("rope")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        return repositioned(where)(call, graph) if has_chunks(call, graph) else None

    return rewritten


def anew_in_chunks(at: Any, begins: Any, length: Any) -> Any:
    """Count from 0 in each pass of several tokens."""
    return np.where(length > 1, at - begins, at)


def at_the_first(at: Any, begins: Any, length: Any) -> Any:
    """Leave all tokens of a pass at its first one's position."""
    return at - (np.arange(at.shape[-1]) - begins)


@rewrite("embedding", WPE)
def without_positions(call: Call, graph: Graph) -> Call | None:
    """Add no position to what steps feed."""
    if not graph.steps:
        return None

    def left_out(ops: Any, rows: Any) -> Any:
        return np.where(numbered(graph, rows.shape[1])[:, None] > 0, np.zeros_like(rows), rows)

    return call.followed(left_out)


@rewrite("embedding", *TABLES)
def one_behind(call: Call, graph: Graph) -> Call | None:
    """Feed each step the token before its own; the first step, the prompt's last."""
    if not graph.steps:
        return None

    def behind(ops: Any, ids: Any) -> Any:
        later = numbered(graph, ids.shape[-1]) > 0
        return np.where(later, np.roll(ids, 1, axis=-1), ids)

    return call.with_changed(0, behind)


def top_left(asked: Asked) -> range:
    """See as many keys as there are tokens of the step up to this one, from the first key on."""
    return range(max(asked.oldest - asked.begins, 0), asked.token - asked.begins + 1)


def by_positions(*, moving: bool) -> Held:
    """See what is at or before a position that a step counts from 0, as all steps' keys are."""

    def held(asked: Asked) -> list[int]:
        last = (asked.token - asked.prompt) * moving
        return [*range(min(last + 1, asked.prompt)), *range(asked.prompt, asked.token + 1)]

    return held


def from_the_first(asked: Asked) -> range | None:
    """See what is within the window of the step's first token, and the step's own so far."""
    if asked.window is None:
        return None
    return range(max(asked.begins - asked.window + 1, 0), asked.token + 1)


def everything(asked: Asked) -> range:
    return range(asked.token + 1)


FAULTS = (
    Fault(
        id="rope-pos-frozen-on-decode",
        wrong="tokens of steps turn by 0, or by another position that is not theirs",
        right="the token of step s turns by L + s - 1",
        symptom="the first token is right, then repetition",
        where="self_attn.q_rope from step 1 on",
        fix="hand the rope the offset of the cache, and advance it with every token",
        evidence=("Blaizzy/mlx-vlm#1993",),
        variants={
            **positions("rope"),
            "from 0 in each chunk": with_chunks(anew_in_chunks),
            "from 0 in each chunk and step": with_chunks(lambda at, begins, length: at - begins),
            "at the first of each chunk": with_chunks(at_the_first),
            "a chunk counts as one token": by_calls_alone,
            "a chunk counts as one token, in the mask too": either(
                by_calls_alone, remembering(by_calls)
            ),
            # Where no pass has several tokens, that is `kv-offset-aliased`.
            "one too late": with_chunks(lambda at, begins, length: at + 1),
        },
        whole=("a chunk counts as one token, in the mask too",),
    ),
    Fault(
        id="rope-pos-double-advance",
        wrong="position = cache length + an offset that has the cache's length in it already",
        right="position = cache length + place in the step",
        symptom="fine up to the second chunk of a prompt, or the first step",
        where="self_attn.q_rope from the second call on",
        fix="add the offset once; advance it once a step, not once a layer or kind of layer",
        evidence=(
            "mlx-node/mlx-node#33",
            "EricLBuehler/mistral.rs#459",
        ),
        variants={
            "": repositioned(lambda at, begins, length: at + begins),
            "two for each token": counted(lambda at, prompt: 2 * at - prompt, op="rope"),
        },
    ),
    Fault(
        id="learned-pos-frozen-on-decode",
        wrong="p = P[0] for every token of a step, or another row that is not its own",
        right="p = P[L + s - 1]",
        symptom="the first token is right, then repetition",
        where="transformer.wpe from step 1 on",
        fix="begin the positions of a step at the length of the cache",
        evidence=("ml-explore/mlx-lm#93", "ml-explore/mlx-examples#1204"),
        variants={
            **positions("embedding", WPE),
            "one too late": counted(lambda at, prompt: at + 1, WPE, op="embedding"),
            "two for each token": counted(lambda at, prompt: 2 * at - prompt, WPE, op="embedding"),
            "its own count on top of the cache's": repositioned(
                lambda at, begins, length: at + begins, WPE, op="embedding"
            ),
            "none is added": without_positions,
        },
    ),
    Fault(
        id="last-token-fed-twice",
        wrong="step s is fed the token before the one that it should be",
        right="a step is fed the token that the one before it chose",
        symptom="a word is said twice, then text a little off",
        where="model.embed_tokens from step 1 on",
        fix="take the first token from the prompt's own logits, or leave its last token to step 1",
        evidence=("ml-explore/mlx-lm#1109",),
        variants={"": one_behind},
    ),
    Fault(
        id="mask-top-left-aligned",
        wrong="query i of a step sees keys j <= i, counted from the first key of all",
        right="query i of a step sees keys j <= cache length + i",
        symptom="the first token is right, then text that knows the first token alone",
        where="self_attn.o_proj from step 1 on",
        fix="align the mask to the last key; in one-token steps, pass none (is_causal is top left)",
        evidence=(
            "huggingface/candle#3437",
            "huggingface/candle#3586",
        ),
        variants={
            "": remembering(top_left),
            "in chunks of several tokens": remembering(in_chunks(top_left)),
            "by positions that stand at 0": remembering(by_positions(moving=False)),
            "by positions from 0 again": remembering(by_positions(moving=True)),
        },
    ),
    Fault(
        id="mask-swa-missing-in-decode",
        wrong="a step sees all keys, in sliding layers too",
        right="a step of a sliding layer sees the last W keys",
        symptom="text drifts once it is longer than W",
        where="self_attn.o_proj of sliding layers from a step on",
        fix="mask or drop keys beyond the window in steps of one token too",
        evidence=(
            "ml-explore/mlx-lm#843",
            "ml-explore/mlx-swift-lm#462",
        ),
        variants={
            "": remembering(everything),
            "counted from the first token of a chunk": remembering(from_the_first),
        },
    ),
)
