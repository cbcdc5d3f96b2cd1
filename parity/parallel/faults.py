"""Bugs of ranks, each a wrong version of the reference's: the catalogue's distributed family.

A wrong run is as easy to make as the right one: one step of it is another one. Each entry has the
id of the catalogue, what is wrong with it, and what of the model is another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.parallel.fused import FusedAttention, FusedGates
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.rules import SUMMED, rule_of
from lockstep.reference.checkpoint.parallel.shares import key_heads
from lockstep.reference.checkpoint.spans import Spans
from lockstep.reference.parallel.each import Each, OpsForEach, for_each
from lockstep.reference.parallel.run import ParallelRun, product
from lockstep.reference.shapes import Array, Tokens

STREAM = re.compile(r"(model\.layers|transformer\.h)\.[0-9]+(\.residual)?")


@dataclass(frozen=True)
class Bug:
    """A bug by its id in the catalogue: what is wrong, what is right, and what mends it.

    `run`, `checkpoint` and `ops` are what has it.
    """

    id: str
    wrong: str
    right: str
    fix: str
    run: type[ParallelRun] = ParallelRun
    checkpoint: type[RankCheckpoint] = RankCheckpoint
    ops: type[OpsForEach] = OpsForEach


class UnsummedExperts(OpsForEach):
    """Every rank goes on with what its part of each expert says."""

    def _sum_of(self, operation: Any) -> Any:
        return lambda *given, **told: for_each(operation, *given, **told)


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


class RememberedAdd(OpsForEach):
    """Operations that know what the last addition was given first, and what it made."""

    last: tuple[Any, Any] = (None, None)

    def add(self, x: Any, y: Any) -> Any:
        made = for_each(self.one.add, x, y)
        self.last = (x, made)
        return made


class ResidualInPartial(ParallelRun):
    """Every rank adds the stream to its part: the sum has it once for each."""

    def tap(self, name: str, value: Any) -> Any:
        stream, made = self.ops.last
        if STREAM.fullmatch(name) and made is value:
            for _ in self.ranks[1:]:
                value = self.ops.add(stream, value)
        return super().tap(name, value)


class SummedThoughWhole(ParallelRun):
    """Every rank has all of an MLP beside experts, and the ranks' results are summed even so."""

    def linear(self, x: Any, path: str) -> Any:
        router = path.removesuffix("mlp.down_proj") + "router.proj.weight"
        if not path.endswith("mlp.down_proj") or not self.checkpoint.has(router):
            return super().linear(x, path)
        right = ParallelRun.linear(silent(self), x, path)
        return self.tap(path, right * right.dtype.type(len(self.ranks)))


class ExpertsSummedThoughWhole(OpsForEach):
    """Every rank has all of every expert, and what they say is summed even so."""

    def __getattr__(self, name: str) -> Any:
        operation = super().__getattr__(name)
        return self.often(operation) if name in SUMMED else operation

    def often(self, operation: Any) -> Any:
        def summed(x: Any, routing: Any, gate: Any, *given: Any, **told: Any) -> Any:
            right = operation(x, routing, gate, *given, **told)
            return right * right.dtype.type(len(gate))

        return summed


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


SUM = "sum over ranks of x_r W_r"
ADD_UP = "add up the parts of all ranks behind every projection that is cut by columns"
EACH = "cut each of the matrices by itself, and then put a rank's parts together"
ONCE = "add it up on no rank, or let one rank alone give it"
BUGS = (
    Bug("tp-allreduce-missing", "no sum behind o_proj, nor behind down_proj", SUM, ADD_UP,
        run=MissingSum, ops=UnsummedExperts),
    Bug("tp-allreduce-missing", "no sum behind o_proj", SUM, ADD_UP, run=MissingSumOfAttention),
    Bug("tp-allreduce-missing", "no sum behind down_proj", SUM, ADD_UP, run=MissingSumOfMlp,
        ops=UnsummedExperts),
    Bug("tp-rowparallel-bias", "every rank adds the bias, before the sum", f"{SUM}, + b once",
        "add the bias once, behind the sum, or on one rank alone", run=BiasEverywhere),
    Bug("tp-residual-in-partial", "every rank adds the residual, before the sum",
        f"x + {SUM}", "add the stream behind the sum", run=ResidualInPartial, ops=RememberedAdd),
    Bug("tp-replicated-expert-summed", "an MLP beside experts that all ranks have is summed",
        "what all have alike is not summed", ONCE, run=SummedThoughWhole),
    Bug("tp-replicated-expert-summed", "experts that all ranks have are summed",
        "what all have alike is not summed", ONCE, ops=ExpertsSummedThoughWhole),
    Bug("tp-vocab-parallel-mask", "words of other ranks are looked up as row 0",
        "a rank adds zeros for words that it has not",
        "mask the rows of words that lie on another rank before the sum", run=NoMask),
    Bug("tp-fused-shard-contiguous", "[Q|K|V] is cut as one matrix", "each of Q, K and V is cut",
        EACH, checkpoint=Contiguous),
    Bug("tp-fused-shard-contiguous", "[Q|K|V] is cut as one matrix", "each of Q, K and V is cut",
        EACH, checkpoint=FusedAttention),
    Bug("tp-fused-shard-contiguous", "[gate|up] is cut as one matrix", "each of the two is cut",
        EACH, checkpoint=FusedGates),
    Bug("tp-kv-shard", "rank r has key head r % heads", "rank r has key head r * heads // ranks",
        "give a rank the key heads that its query heads look at", checkpoint=HeadsInTurns),
)  # fmt: skip


def silent(run: ParallelRun) -> ParallelRun:
    """Return a run that tells nobody what it makes."""
    return replace(run, trace=None)
