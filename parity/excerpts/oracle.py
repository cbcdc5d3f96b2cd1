"""Judge some tokens of a prompt: the reference runs over all of them, and over these alone.

What works token by token is computed again from the port's own values, of these tokens alone.
Attention needs the keys and values of all tokens: where the port's cache is at hand it is computed
again from that; where it is not, its result is held against the reference's own run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.excerpts.whole_run import WholeRun
from lockstep.parity.judging.padding import Padding
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.names import CACHED
from lockstep.parity.replaying.cached import caches_behind
from lockstep.parity.replaying.oracle import (
    Oracle,
    OracleStage,
    fitting_taps,
    judged_tap,
    misshapen,
    shaped_alike,
)
from lockstep.parity.replaying.recorder import Node, Stage
from lockstep.parity.replaying.replay import Known, Replay
from lockstep.reference.model import Model

# Operations whose result at a token needs nothing of other tokens. What is not here may.
BY_TOKEN = frozenset((
    "add", "add_lora", "add_lora_rows", "column_block", "dequantize", "dequantize_affine",
    "dequantize_blocks", "dequantize_minifloat", "dora_rescale", "embedding", "experts", "gain",
    "geglu", "geglu_experts", "gelu_erf", "gelu_tanh", "heads_first", "layer_norm", "linear",
    "merge_heads", "multiply", "rms_norm", "rope", "rope_frequencies", "rope_frequencies_linear",
    "rope_frequencies_llama3", "rope_frequencies_proportional", "rope_frequencies_yarn", "scale",
    "silu", "softcap", "split_heads", "swiglu", "top_k_routing", "unit_norm",
))  # fmt: skip
BY_LENGTH = frozenset(("rope_frequencies_dynamic", "rope_frequencies_longrope"))  # of the text
# Of what all tokens have, these take from the place that is given: keys, or values.
OF_ALL = {"attention_scores": (1,), "attention_context": (1,), "attention": (1, 2)}
MASKED = {"softmax": 1, "attention_context": 2, "attention": 3}  # where their mask is


@dataclass
class SomeReplay(Replay):
    """A replay of some tokens; what needs others is left as it was recorded, and not asked for."""

    unknown: frozenset[int] = frozenset()

    def compute(self, node: Node, known: Known) -> np.ndarray:
        return node.output if id(node.output) in self.unknown else super().compute(node, known)


@dataclass(frozen=True)
class SomeStage:
    """One stage of both runs: the recorded one over some tokens, and what is right for these.

    `caches` is what the reference's cache holds of all tokens, by their taps.
    """

    recorded: OracleStage
    truth: Mapping[str, np.ndarray]
    caches: Mapping[str, np.ndarray]

    @property
    def name(self) -> str:
        return self.recorded.name


@dataclass
class Beyond:
    """Where all tokens stand, and which recorded values must not be taken for those of all."""

    keys: np.ndarray  # (B, S)
    lengths: np.ndarray  # (B,) one past the last token of each row
    known: dict[int, Any] = field(default_factory=dict)  # kept alive: an identity comes again


class ExcerptOracle:
    """Two runs of the reference side by side; `dtype` is that of the port."""

    def __init__(self, model: Model, dtype: str, excerpt: Excerpt):
        self.model, self.excerpt = model, excerpt
        self.small, self.cache = Oracle(model, dtype, caches=True), model.make_cache()
        small = self.small
        small.centre = SomeReplay(small.centre.ops, small.centre.dtype)
        small.ways[:] = [SomeReplay(way.ops, way.dtype) for way in small.ways]
        self.beyond = Beyond(np.zeros((0, 0)), np.zeros(0))
        self.lost: set[int] = set()  # values that nobody knows for these tokens
        self.logits: np.ndarray | None = None

    def stages(
        self, tokens: np.ndarray, *, step: int, lengths: Any = None, positions: Any = None
    ) -> Iterator[SomeStage]:
        """Run both over whole prompts (B, L), or over what a step feeds (B, n), a stage at a time.

        Of the whole run each tap is cut to these tokens as it is made. `positions` (B, L) are those
        of all tokens, where they do not count from 0.
        """
        begun, whole = False, self.whole(tokens, step, lengths, positions)
        some = self.small.stages(**self.some(tokens, step, positions))
        for (_, value, truth), stage in zip(whole, some, strict=True):
            self.logits = value
            if not begun:
                begun = True
                self.begin()
            yield SomeStage(stage, truth, dict(caches_behind(stage.name, self.cache)))

    def whole(
        self, tokens: np.ndarray, step: int, lengths: Any, positions: Any
    ) -> Iterator[tuple[str, Any, dict[str, np.ndarray]]]:
        """Run the reference over all tokens; of a step all are kept."""
        if not step:
            run = WholeRun(self.model, self.cache, self.excerpt)
            yield from run.stages(tokens, lengths=lengths, positions=positions)
            return
        found: dict[str, np.ndarray] = {}
        for name, value in self.model.stages(tokens, cache=self.cache, trace=found.__setitem__):
            yield name, value, dict(found)
            found.clear()

    def begin(self) -> None:
        """Note where the tokens of all passes stand; nothing is known of their values yet."""
        held = self.cache.positions.array
        assert held is not None  # the whole run has begun
        self.beyond, self.lost = Beyond(held, held.max(axis=1, initial=-1) + 1), set()

    def some(self, tokens: np.ndarray, step: int, positions: Any) -> dict[str, Any]:
        """Return what the run over some tokens is fed: their ids, and where they stand."""
        if step:
            start = self.cache.positions.next(len(tokens))
            return {"tokens": tokens, "positions": start[:, None] + np.arange(tokens.shape[1])}
        excerpt = self.excerpt
        every = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        every = every if positions is None else np.asarray(positions)
        return {"tokens": excerpt.chosen(tokens), "positions": excerpt.chosen(every),
                "lengths": list(excerpt.counts)}  # fmt: skip

    @np.errstate(all="ignore")  # what a broken port dumps may overflow anywhere
    def judge(
        self,
        stage: SomeStage,
        port: Mapping[str, np.ndarray],
        caches: Mapping[str, np.ndarray],
        prefix: str,
        padding: Padding | None,
    ) -> tuple[list[Tap], dict[str, np.ndarray]]:
        """Judge the taps that can be computed again; return them, and what the others should be.

        `port` has the port's values of these tokens, `caches` what its caches hold of all tokens,
        by their taps, as far as that is known. These are never computed again: an error in them is
        of tokens that may not be among these.
        """
        recorded, truth = stage.recorded.recorded, stage.truth
        fed = fitting_taps(truth, port, prefix, padding)
        given, open_, unknown = self.known(recorded, fed, caches)
        centre, spread = self.replayed(stage.recorded, given, unknown)
        operations = {id(node.output): node.op for node in recorded.nodes}
        taps: list[Tap] = []
        instead = {name: right for name, right in stage.caches.items()
                   if shaped_alike(caches.get(name), right)}  # fmt: skip
        for name, right in truth.items():
            if name not in port or not right.size:
                continue
            op = operations[id(recorded.taps[name])]
            if name not in fed:
                taps.append(misshapen(prefix + name, op, port[name], right))
            elif name in open_:
                instead[name] = right
            else:
                taps.append(judged_tap(prefix + name, op, port[name], right, centre[name],
                            [way[name] for way in spread], self.small.dtype, padding))  # fmt: skip
        return taps, instead

    @np.errstate(all="ignore")
    def pass_by(
        self,
        stage: SomeStage,
        port: Mapping[str, np.ndarray],
        caches: Mapping[str, np.ndarray],
        prefix: str,
        padding: Padding | None,
    ) -> None:
        """Do what `judge` leaves behind for later stages, and no more."""
        fed = fitting_taps(stage.truth, port, prefix, padding)
        given, _, unknown = self.known(stage.recorded.recorded, fed, caches)
        alive = stage.recorded.alive | self.beyond.known.keys()
        for replay in self.ways(stage.recorded, unknown):
            replay.carry(stage.recorded.recorded, given, alive)
        self.lost &= stage.recorded.alive

    def known(
        self, recorded: Stage, fed: Mapping[str, np.ndarray], caches: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], set[str], frozenset[int]]:
        """Return what a replay is given of the port, and as `unknown` does what it cannot know."""
        held = self.held_of_all(recorded, caches)
        taken = {id(recorded.taps[name]) for name in held}
        given = {name: one for name, one in fed.items() if id(recorded.taps[name]) not in taken}
        return given | held, *self.unknown(recorded, given, taken)

    def held_of_all(
        self, recorded: Stage, caches: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return what the port's cache holds of all tokens, in their order, where it does."""
        count = self.beyond.keys.shape[1]
        found = {}
        for name, mine in recorded.taps.items():
            theirs = caches.get(name) if name.endswith(CACHED) else None
            wanted = (*mine.shape[:2], count, mine.shape[3]) if theirs is not None else ()
            if theirs is not None and theirs.shape == wanted and theirs.dtype.kind not in "iubc":
                found[name] = theirs
        paths = [name.rpartition(".")[0] for name in found]
        return {name: one for name, one in found.items()
                if paths.count(name.rpartition(".")[0]) == len(CACHED)}  # fmt: skip

    def unknown(
        self, recorded: Stage, given: Mapping[str, np.ndarray], taken: set[int]
    ) -> tuple[set[str], frozenset[int]]:
        """Return the taps, and the values, that cannot be computed from what is known.

        `given` are the port's values of these tokens, `taken` the values whose whole is known.
        """
        known = self.beyond.known
        names: dict[int, list[str]] = {}
        for name, value in recorded.taps.items():
            names.setdefault(id(value), []).append(name)
        unknown: set[int] = set()
        open_: set[str] = set()
        lost = self.lost
        for node in recorded.nodes:
            out, sources = id(node.output), {id(one) for one in node.inputs}
            if sources & lost or not self.computable(node, known):
                unknown.add(out)
                open_ |= {*names.get(out, [])}
            if out in taken:
                known[out] = node.output
            given_here = any(name in given for name in names.get(out, []))
            if out in unknown and not given_here and out not in taken:
                lost.add(out)
        return open_, frozenset(unknown)

    def computable(self, node: Node, known: dict[int, Any]) -> bool:
        """Say whether an operation needs nothing but these tokens, or what is known of all."""
        if node.op == "causal_mask" or node.op in BY_LENGTH:
            known[id(node.output)] = node
            return True
        of_all = (*OF_ALL.get(node.op, ()), *([MASKED[node.op]] if node.op in MASKED else []))
        if of_all:
            return all(id(node.inputs[place]) in known for place in of_all)
        return node.op in BY_TOKEN

    def replayed(
        self, stage: OracleStage, port: Mapping[str, np.ndarray], unknown: frozenset[int]
    ) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
        """Compute the stage again in every way; masks and angles are those of whole prompts."""
        shared, alive = Known(), stage.alive | self.beyond.known.keys()
        made = []
        for replay in self.ways(stage, unknown):
            kept = {} if replay is self.small.centre else shared
            made.append(replay.stage(stage.recorded, port, kept))
            replay.forget_all_but(alive)
        self.lost &= stage.alive
        return made[0], made[1:]

    def ways(self, stage: OracleStage, unknown: frozenset[int]) -> Iterator[SomeReplay]:
        """Yield every way of computing again, told of all tokens what a stage needs to know."""
        for replay in (self.small.centre, *self.small.ways):
            assert isinstance(replay, SomeReplay)
            replay.unknown = unknown
            for node in stage.recorded.nodes:
                if node.op == "causal_mask":
                    replay.carried[id(node.inputs[1])] = self.beyond.keys
                elif node.op in BY_LENGTH:
                    replay.carried[id(node.inputs[0])] = self.beyond.lengths
            yield replay
