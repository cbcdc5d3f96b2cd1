"""Bugs of ranks, each a wrong version of the reference's: the catalogue's distributed family.

A wrong run is as easy to make as the right one: one step of it is another one. Each entry has the
id of the catalogue, what is wrong with it, and the model that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.parallel.compare import compare
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.checkpoint.parallel.shares import key_heads
from lockstep.reference.checkpoint.spans import Spans
from lockstep.reference.parallel.each import Each, for_each
from lockstep.reference.parallel.model import ParallelModel
from lockstep.reference.parallel.run import ParallelRun, product
from lockstep.reference.shapes import Array, Tokens


@dataclass(frozen=True)
class Bug:
    """A bug by its id in the catalogue: what is wrong, and the run or the reader that has it."""

    id: str
    wrong: str
    run: type[ParallelRun] = ParallelRun
    checkpoint: type[RankCheckpoint] = RankCheckpoint


class MissingSum(ParallelRun):
    """Every rank goes on with its own part."""

    ends = ("o_proj", "down_proj", "c_proj")

    def linear(self, x: Any, path: str) -> Any:
        rule = rule_of(path)
        if rule is None or rule.axis == "rows" or not path.endswith(self.ends):
            return super().linear(x, path)
        parts, bias = for_each(product, Each(self.ranks), x, path), f"{path}.bias"
        if self.checkpoint.has(bias):
            held = self.weight(bias)
            parts = for_each(lambda part: part + held.astype(part.dtype), parts)
        return self.tap(path, parts)


class MissingSumOfAttention(MissingSum):
    ends = ("o_proj", "attn.c_proj")


class MissingSumOfMlp(MissingSum):
    ends = ("down_proj", "mlp.c_proj")


class BiasEverywhere(ParallelRun):
    """Every rank adds the bias to its part: the sum has it once for each."""

    def linear(self, x: Any, path: str) -> Any:
        rule, bias = rule_of(path), f"{path}.bias"
        if rule is None or rule.axis == "rows" or not self.checkpoint.has(bias):
            return super().linear(x, path)
        right = ParallelRun.linear(silent(self), x, path)
        more = self.weight(bias).astype(right.dtype) * (len(self.ranks) - 1)
        return self.tap(path, right + more)


class NoMask(ParallelRun):
    """A rank looks up its row 0 for a word that it has not, and this is added up too."""

    def looked_up(self, ids: Tokens, path: str) -> Array:
        if rule_of(path) is None:
            return super().looked_up(ids, path)
        total: Any = 0
        for run in self.ranks:
            checkpoint: Any = run.checkpoint
            ((first, stop),) = checkpoint.spans(path)
            here = (ids >= first) & (ids < stop)
            total = total + run.looked_up(np.where(here, ids - first, 0), path)
        return total


class Contiguous(RankCheckpoint):
    """Queries, keys and values that lie in one matrix are cut as if they were one."""

    def spans(self, module: str) -> Spans:
        right = super().spans(module)
        rows = sum(stop - first for first, stop in right)
        return ((self.rank * rows, (self.rank + 1) * rows),) if len(right) > 1 else right


class HeadsInTurns(RankCheckpoint):
    """Where ranks share key heads, rank r has head r % heads."""

    def spans(self, module: str) -> Spans:
        right, rule = super().spans(module), rule_of(module)
        heads = key_heads(self.whole.config, 0)
        if rule is None or rule.unit != "keys" or heads >= self.ranks:
            return right
        wide = right[0][1] - right[0][0]
        head = self.rank % heads
        return ((head * wide, (head + 1) * wide),)


BUGS = (
    Bug("tp-allreduce-missing", "no sum behind o_proj, nor behind down_proj", run=MissingSum),
    Bug("tp-allreduce-missing", "no sum behind o_proj", run=MissingSumOfAttention),
    Bug("tp-allreduce-missing", "no sum behind down_proj", run=MissingSumOfMlp),
    Bug("tp-rowparallel-bias", "every rank adds the bias, before the sum", run=BiasEverywhere),
    Bug("tp-vocab-parallel-mask", "words of other ranks are looked up as row 0", run=NoMask),
    Bug("tp-fused-shard-contiguous", "[Q|K|V] is cut as one matrix", checkpoint=Contiguous),
    Bug("tp-kv-shard", "rank r has key head r % heads", checkpoint=HeadsInTurns),
)


def silent(run: ParallelRun) -> ParallelRun:
    """Return a run that tells nobody what it makes."""
    return replace(run, trace=None)


def named(
    reference: ParallelModel, dumps: Sequence[Any], tokens: Sequence[int], *, decode: int
) -> list[Bug]:
    """Return the bugs that explain every tap of every rank: their wrong runs give the same taps."""
    found = []
    for bug in BUGS:
        wrong = reference.with_parts(run=bug.run, checkpoint=bug.checkpoint)
        if compare(wrong, dumps, tokens, decode=decode, said="").verdict == "parity":
            found.append(bug)
    return found
