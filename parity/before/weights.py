"""A port's weights against the checkpoint's, tensor by tensor, before anything is run."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.before.elsewhere import Values, exchanged, expert_of, layer_text, placed
from lockstep.parity.before.figures import same
from lockstep.parity.before.hypotheses import experts_verdict, judged
from lockstep.parity.before.missing import absent, beyond
from lockstep.parity.before.own_tensors import PACKED, OwnTensors, Shape, plain
from lockstep.parity.before.packed_ways import ANOTHER, misread, requantised, unquantised
from lockstep.parity.before.pairs import Pair, Verdict, pair
from lockstep.parity.before.port_tensors import PortTensors, Unfit
from lockstep.parity.judging.result import tidy
from lockstep.parity.naming.recovery import recover
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError

NO_FIT = ("unknown difference", "rows permuted", "other shape", "factor")
TABLES = ("embed", "wte", "wpe", "lm_head")
OTHER_SIDE = re.compile(r"[qk]_proj")
TURNED = "they are stored as (inputs, outputs)"


@dataclass(frozen=True)
class WeightFinding:
    """One thing that is otherwise, and in which tensors. `harmless` is a convention, no fault.

    `tensors` has our name and theirs of each; theirs is None for one that is missing, ours for
    one that we have not. `fault` is an id of the catalogue, or None where no class fits.
    """

    tensors: tuple[tuple[str | None, str | None], ...]
    kind: str
    fault: str | None
    text: str
    fix: str
    harmless: bool = False
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        listed = [{"ours": ours, "theirs": theirs} for ours, theirs in self.tensors]
        return {
            "tensors": listed, "kind": self.kind, "fault": self.fault, "text": self.text,
            "fix": self.fix, "harmless": self.harmless,
            "figures": {name: tidy(value) for name, value in self.figures.items()},
        }  # fmt: skip

    def __str__(self) -> str:
        ours, theirs = self.tensors[0]
        more = f" and {len(self.tensors) - 1} more" * (len(self.tensors) > 1)
        named = f" [{self.fault}]" * (self.fault is not None)
        name = theirs or ours or "all matrices"
        return f"{name}{more}: {self.kind}, {self.text}{named}. Fix: {self.fix}"


@dataclass
class WeightReport:
    """What was found in a port's weights: faults, then the unknown, then conventions.

    Before them all comes that the port runs another quantisation.
    """

    findings: list[WeightFinding]
    compared: int
    plan: list[str]
    unmatched: list[str]

    def to_json(self) -> dict[str, Any]:
        found = [finding.to_json() for finding in self.findings]
        return {"compared": self.compared, "plan": self.plan, "unmatched": self.unmatched,
                "findings": found}  # fmt: skip


def compare_weights(checkpoint: Checkpoint, path: str | Path) -> WeightReport:
    """Compare weights, a safetensors file, a folder of shards or an npz, with a checkpoint.

    One tensor is in memory at a time.

    Raises: InputError if the file is bad, or none of its tensors is one of the checkpoint's.
    """
    return Comparison(OwnTensors(checkpoint), PortTensors(path)).report()


class Comparison:
    """One comparison: which tensor is which, what is otherwise with each, and what they share."""

    def __init__(self, own: OwnTensors, port: PortTensors):
        self.own, self.port = own, port
        self.values = Values(own)
        self.plan: list[str] = []
        self.names = self.matched()  # theirs -> ours
        self.turned = self.is_turned()
        self.held: dict[str, str] = {}  # our name -> the one of ours that it holds
        self.theirs = {ours: theirs for theirs, ours in self.names.items()}

    def matched(self) -> dict[str, str]:
        """Find our name of each of theirs: the same, by its words, by its values, by its shape."""
        names: dict[str, str] = {}
        for theirs in self.port.shapes:
            ours = self.own.named(theirs)
            if ours is not None and ours not in names.values():
                names[theirs] = ours
        names |= self.recovered(names, by_shape=False)
        names = self.by_values(names)
        self.guessed = self.recovered(names, by_shape=True)
        return names | self.guessed

    def recovered(self, names: dict[str, str], *, by_shape: bool) -> dict[str, str]:
        covered = self.covered(names)
        rest = {t: shape for t, shape in self.port.shapes.items() if t not in names}
        free = {
            ours: shape
            for ours, shape in self.own.shapes.items()
            if not covered & set(self.own.parts[ours]) and expert_of(placed(ours)[0]) is None
        }
        found = recover(rest, free, fits=may_be, by_shape=by_shape)
        self.plan += found.plan
        return found.names

    def by_values(self, names: dict[str, str]) -> dict[str, str]:
        """Add the tensors whose name says nothing and whose values are those of one of ours."""
        covered = self.covered(names)
        for theirs, shape in self.port.shapes.items():
            if theirs in names or -1 in shape or not self.may_hold(theirs):
                continue
            try:
                ours = self.values.same_as(self.port.floats(theirs))
            except Unfit:
                continue
            if ours is not None and not covered & set(self.own.parts[ours]):
                names[theirs] = ours
                covered |= set(self.own.parts[ours])
                self.plan.append(f"{theirs} taken for {ours}, whose values it has")
        return names

    def may_hold(self, theirs: str) -> bool:
        shape = self.port.shapes[theirs]
        return len(shape) > 0 and shape in self.own.shapes.values()

    def covered(self, names: dict[str, str]) -> set[str]:
        return {part for ours in names.values() for part in self.own.parts[ours]}

    def is_turned(self) -> bool:
        """Say whether most matrices that are not square are stored as (inputs, outputs)."""
        votes = 0
        for theirs, ours in self.names.items():
            x, y = self.port.shapes[theirs], self.own.shapes[ours]
            if is_linear(ours) and len(x) == len(y) > 1 and y[-1] != y[-2]:
                votes += (x == flipped(y)) - (x == y)
        return votes > 0

    def report(self) -> WeightReport:
        """Judge every tensor, then what is missing, then what lies elsewhere."""
        if not self.names:
            what = "none of its tensors is one of the checkpoint's, by name, shape or values"
            raise InputError(self.port.path, what)
        found = one_sided(list(self.singles()), self.theirs)
        found += self.displaced()
        missing = [name for name in self.own.checkpoint.names if name not in self.parts_given()]
        rest = [theirs for theirs in self.port.shapes if theirs not in self.names]
        found += [finding((name, None), one) for name, one in absent(self.own, missing, self.names)]
        extra = list(beyond(self.own, self.port, rest))
        found += [finding((None, theirs), one) for theirs, one in extra]
        if self.turned and not self.own.turned:
            one = Verdict("layout", None, TURNED, "nothing, if it multiplies so", harmless=True)
            found.append(finding((None, None), one))
        return WeightReport(gathered(found), len(self.names), self.plan, rest)

    def parts_given(self) -> set[str]:
        return self.covered(self.names)

    def singles(self) -> Iterator[WeightFinding]:
        """Judge each tensor by itself; what holds another one of ours is kept for later."""
        for theirs, ours in self.names.items():
            try:
                raw = self.port.read(theirs, self.own.shapes[ours])
            except Unfit as unfit:
                one = Verdict("unreadable", None, unfit.what, "store numbers that are weights")
                yield finding((ours, theirs), one)
                continue
            stored = plain(raw) if isinstance(raw, PACKED) else raw
            linear = self.turned and is_linear(ours) and stored.ndim > 1
            oriented = np.swapaxes(stored, -1, -2) if linear else stored
            wanted = self.own.read(ours)
            if same(oriented, wanted):
                continue
            both = self.paired(ours, oriented, wanted)
            verdict = self.verdict(both, raw)
            if verdict is None:
                continue
            if verdict.kind in NO_FIT and (other := self.values.same_as(oriented, but=ours)):
                self.held[ours] = other
                continue
            if theirs in self.guessed and verdict.kind in NO_FIT:
                text = f"{verdict.text}; it was taken for {ours} by its shape alone"
                verdict = replace(verdict, text=text)
            yield finding((ours, theirs), verdict)

    def paired(self, ours: str, stored: np.ndarray, wanted: np.ndarray) -> Pair:
        config = self.own.checkpoint.config
        return pair(
            ours,
            stored,
            wanted,
            heads=self.own.heads(ours),
            width=config.hidden_size,
            packed=self.own.packed(ours) is not None,
            gguf=self.own.checkpoint.path.suffix == ".gguf",
            scaled=self.own.checkpoint.architecture.startswith("gemma"),
        )

    def verdict(self, both: Pair, raw: Any) -> Verdict | None:
        """Judge a pair, with the wrong ways of unpacking where ours or theirs is packed."""
        verdict = judged(both)
        if verdict is None or verdict.kind not in (*NO_FIT, ANOTHER):
            return verdict
        packed, found = self.own.packed(both.name), None
        if packed is not None:
            found = misread(packed, both)
        if found is None and isinstance(raw, PACKED):
            found = requantised(raw, both)
        elif found is None and packed is not None:
            found = unquantised(packed, both)
        return found or verdict

    def displaced(self) -> Iterator[WeightFinding]:
        """Say what lies under another name: layers, experts, or tensors of one layer."""
        for (why, what), names in exchanged(self.held).items():
            tensors = tuple((name, self.theirs[name]) for name in names)
            yield replace(finding(tensors[0], self.exchange(why, what, names)), tensors=tensors)

    def exchange(self, why: str, what: str, names: list[str]) -> Verdict:
        if why == "layers":
            pairs = [(placed(name)[1], placed(self.held[name])[1]) for name in names]
            count = self.own.checkpoint.config.num_hidden_layers
            text, fix = layer_text(pairs, count), "sort the layers by number"
            return Verdict("layers swapped", "layers-swapped", text, fix)
        if why == "experts":
            return experts_verdict(self.expert_order(names))
        text = f"{names[0]} holds {self.held[names[0]]}"
        return Verdict("tensors swapped", swap_fault(what), text, "give each its own values")

    def expert_order(self, names: list[str]) -> list[int]:
        """Return which expert each one holds, of the first layer that has them in another order."""
        moved = {}
        first = placed(names[0])
        for name in names:
            if placed(name)[1] == first[1]:
                here, there = (expert_of(placed(one)[0]) for one in (name, self.held[name]))
                if here and there:
                    moved[here[1]] = there[1]
        count = self.own.checkpoint.config.num_experts
        return [moved.get(expert, expert) for expert in range(count)]


# Two parts of one layer that hold each other's values -> the class that this is.
SWAPS = {
    frozenset(("mlp.gate_proj", "mlp.up_proj")): "fused-gate-up-order",
    frozenset(("post_attention_layernorm", "pre_feedforward_layernorm")): "norm-name-aliasing",
    frozenset(("input_layernorm", "post_attention_layernorm")): "norm-name-aliasing",
    frozenset(("ln_1", "ln_2")): "norm-name-aliasing",
    frozenset(("pre_feedforward_layernorm", "post_feedforward_layernorm")): "ffn-norms-swapped",
    frozenset(("lm_head", "model.embed_tokens")): "tied-head-mishandled",
    frozenset(("self_attn.k_proj", "self_attn.v_proj")): None,
}


def swap_fault(what: str) -> str | None:
    parts = [
        re.sub(r"^(model\.layers|transformer\.h)\.\{layer\}\.|\.(weight|bias)$", "", one)
        for one in what.split(" and ")
    ]
    return SWAPS.get(frozenset(parts))


def may_be(found: Shape, wanted: Shape) -> bool:
    """Say whether a shape of theirs may be one of ours, turned or packed."""
    if -1 in found:
        return found[:-1] == wanted[:-1]
    return found == wanted or (len(found) == len(wanted) and prod(found) == prod(wanted))


def is_linear(name: str) -> bool:
    return not any(word in name for word in TABLES)


def flipped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def finding(tensor: tuple[str | None, str | None], one: Verdict) -> WeightFinding:
    return WeightFinding(
        (tensor,), one.kind, one.fault, one.text, one.fix, one.harmless, one.figures
    )


def one_sided(found: list[WeightFinding], compared: Collection[str]) -> list[WeightFinding]:
    """Turn a rope layout into a fault where q has it and k has not, or the other way round.

    A layer that takes its keys from another has no k; `compared` has our names that there are.
    """
    sides = {one.tensors[0][0] or "" for one in found if one.kind == "rope layout"}
    done = []
    for one in found:
        name = one.tensors[0][0] or ""
        other = OTHER_SIDE.sub(lambda m: "k_proj" if m[0] == "q_proj" else "q_proj", name)
        if one.kind == "rope layout" and other in compared and other not in sides:
            text = f"{one.text.partition(':')[0]}, and those of {other} are not"
            one = replace(one, text=text, harmless=False, fix="lay out the rows of both alike")
        done.append(one)
    return done


def gathered(found: list[WeightFinding]) -> list[WeightFinding]:
    """Join findings that say the same of several tensors; faults before conventions."""
    joined: dict[tuple[Any, ...], WeightFinding] = {}
    for one in found:
        apart = one.tensors if one.kind == "unknown difference" else re.sub("[0-9]+", "", one.text)
        key = (one.kind, one.fault, one.harmless, apart)
        if key in joined:
            one = replace(joined[key], tensors=joined[key].tensors + one.tensors)
        joined[key] = one
    return sorted(
        joined.values(), key=lambda one: (one.kind != ANOTHER, one.harmless, one.fault is None)
    )
