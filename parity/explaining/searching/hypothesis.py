"""What may be wrong: entries of the catalogue, and where in this model each of them would act."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.graph import Again, Call, Conflict, Derived, Graph, Ref, with_again

# Norms before attention and the MLP; after them, where there are such; and parts of a layer.
BEFORE = r"input_layernorm|post_attention_layernorm|ln_[12]"
BEFORE_SANDWICHED = r"input_layernorm|pre_feedforward_layernorm"
AFTER = r"post_attention_layernorm|post_feedforward_layernorm"
ROLES = (
    r"(self_)?attn\..*",
    r"(self_)?attn\.[qk]_.*",
    r"mlp\..*",
    r"experts|router.*",
    r".*norm.*",
)
FEW = 8  # calls that a hypothesis may change in a piece, for each to be thought of alone


@dataclass(frozen=True)
class Hypothesis:
    """One variant of a fault, and the calls of this graph that it changes."""

    fault: Fault = field(compare=False, repr=False)
    id: str
    variant: str
    order: int
    calls: frozenset[int] = field(compare=False, repr=False)

    @property
    def rank(self) -> tuple[int, str]:
        """Where it stands in the catalogue."""
        return self.order, self.variant

    @property
    def rewrite(self) -> Rewrite:
        return self.fault.variants[self.variant]

    @property
    def whole(self) -> bool:
        """Whether a layer has all of it, or none."""
        return self.variant in self.fault.whole

    @property
    def throughout(self) -> bool:
        """Whether a model has all of it, or none."""
        return self.variant in self.fault.throughout

    @property
    def paired(self) -> bool:
        """Whether layers are exchanged: two of them have it, or all, but none alone."""
        return self.variant in self.fault.pairs

    @property
    def undivided(self) -> bool:
        """Whether no part of it is thought of: a part of a convention is a bug."""
        return self.throughout or self.fault.convention


@dataclass(frozen=True)
class Atom:
    """A hypothesis that acts on some of its calls: all of a piece, or those of one module."""

    hypothesis: Hypothesis
    calls: frozenset[int]

    @cached_property
    def rank(self) -> tuple[int, str, list[int]]:
        """Where it stands among others."""
        return *self.hypothesis.rank, sorted(self.calls)

    def __repr__(self) -> str:
        return f"{self.hypothesis.id}[{self.hypothesis.variant}]@{sorted(self.calls)}"


def in_order(atoms: Iterable[Atom]) -> list[Atom]:
    """Return bugs in the order of the catalogue, then of their calls: a set has another one in each
    process.
    """
    return sorted(atoms, key=lambda atom: atom.rank)


def hypotheses(faults: Iterable[Fault], graph: Graph) -> list[Hypothesis]:
    """Return every variant that changes anything in a graph."""
    found = []
    for order, fault in enumerate(faults):
        for variant, rewrite in fault.variants.items():
            calls = frozenset(
                call.number for call in graph.calls if rewrite(call, graph) is not None
            )
            if calls:
                found.append(Hypothesis(fault, fault.id, variant, order, calls))
    return found


def atoms_in(
    hypothesis: Hypothesis, calls: Collection[int], early: Collection[int], graph: Graph
) -> Iterator[Atom]:
    """Yield where a hypothesis may act within some calls: all, one module's, one layer's ...

    `early` are the calls that the first token shows; a bug may be in those alone, or in the rest.
    """
    here = hypothesis.calls & frozenset(calls)
    if hypothesis.undivided:
        yield from [Atom(hypothesis, here)] if here else []
        return
    places, layers = grouped(here, graph)
    if hypothesis.paired:
        yield from map(partial(Atom, hypothesis), exchanged(hypothesis, layers, graph))
        return
    if hypothesis.whole:
        every = dict.fromkeys((here, *layers.values()))
        yield from (Atom(hypothesis, group) for group in every if group)
        return
    groups: dict[frozenset[int], None] = {}
    for group in (here, *layers.values(), *kinds(here, graph)):
        groups |= dict.fromkeys((group, group & frozenset(early), group - frozenset(early)))
    for group in (*places.values(), *roles(places)):
        groups |= dict.fromkeys((group, *kinds(group, graph)))
    if len(here) <= FEW:
        groups |= dict.fromkeys(frozenset([number]) for number in here)
    yield from (Atom(hypothesis, group) for group in groups if group)


def exchanged(
    hypothesis: Hypothesis, layers: Mapping[int | None, frozenset[int]], graph: Graph
) -> list[frozenset[int]]:
    """Return the calls of every two layers that a hypothesis exchanges, and of all of them."""
    other, count = hypothesis.fault.pairs[hypothesis.variant], graph.config.num_hidden_layers
    own = [layer for layer in layers if layer is not None and layer < other(layer, count)]
    pairs = [layers[one] | layers[other(one, count)] for one in own if other(one, count) in layers]
    return pairs if len(pairs) < 2 else [frozenset().union(*pairs), *pairs]


def in_one_module(hypothesis: Hypothesis, calls: Collection[int], graph: Graph) -> Iterator[Atom]:
    """Yield where a hypothesis may act in one layer: in one module, as what misreads a tensor
    does, or in those that play one part.

    Of few calls each is thought of already.
    """
    here = hypothesis.calls & frozenset(calls)
    if len(here) <= FEW or hypothesis.whole or hypothesis.paired or hypothesis.undivided:
        return
    groups: dict[frozenset[int], None] = {}
    for layer in grouped(here, graph)[1].values():
        places, _ = grouped(layer, graph)
        groups |= dict.fromkeys((*places.values(), *roles(places)))
    yield from (Atom(hypothesis, group) for group in groups if group)


def roles(places: Mapping[str, frozenset[int]]) -> Iterator[frozenset[int]]:
    """Yield the calls of the modules that play one part, as a port's author thinks of them."""
    sandwiched = "pre_feedforward_layernorm" in places
    for pattern in (*ROLES, BEFORE_SANDWICHED if sandwiched else BEFORE, AFTER):
        yield frozenset().union(
            *(calls for place, calls in places.items() if re.fullmatch(pattern, place))
        )


def grouped(
    calls: Collection[int], graph: Graph
) -> tuple[dict[str, frozenset[int]], dict[int | None, frozenset[int]]]:
    """Return the calls of each module, and those of each layer."""
    places: dict[str, frozenset[int]] = {}
    layers: dict[int | None, frozenset[int]] = {}
    for number in sorted(calls):
        call = graph.calls[number]
        places[call.place] = places.get(call.place, frozenset()) | {number}
        layers[call.layer] = layers.get(call.layer, frozenset()) | {number}
    return places, layers


def kinds(calls: Collection[int], graph: Graph) -> Iterator[frozenset[int]]:
    """Yield the calls of layers of one kind: those that slide, those that see everything."""
    types = getattr(graph.config, "layer_types", None) or ()
    for kind in sorted(set(types)):
        group = frozenset(
            number for number in calls
            if (layer := graph.calls[number].layer) is not None and types[layer] == kind
        )  # fmt: skip
        if group:
            yield group


def rewritten(atoms: Iterable[Atom], graph: Graph) -> dict[int, Call] | None:
    """Return the calls as several atoms together leave them; None if they cannot all be there.

    Rewrites are functions of a call, so they compose, in the order of the catalogue. Two variants
    of one bug in one call exclude each other.
    """
    wrong: dict[int, tuple[Hypothesis, ...]] = {}
    ordered = in_order(atoms)
    for atom in ordered:
        for number in atom.calls:
            wrong[number] = (*wrong.get(number, ()), atom.hypothesis)
    if any(displaces_one(atom, ordered, graph) for atom in ordered):
        return None
    calls = {number: composed(graph, number, bugs) for number, bugs in wrong.items()}
    found = {number: call for number, call in calls.items() if call is not None}
    return with_each_other(found, wrong, graph) if len(found) == len(calls) else None


def displaces_one(by: Atom, atoms: Iterable[Atom], graph: Graph) -> bool:
    """Say whether some bug is of calls alone that this one does in its own way, and of one that is
    done so here: there it could not be seen, whatever it is.
    """
    source = by.hypothesis.fault.displaces.get(by.hypothesis.variant)
    if source is None:
        return False
    done = {number: source(graph.calls[number], graph) for number in by.hypothesis.calls}
    every = {call.number for call in done.values() if call is not None}
    here = {call.number for number in by.calls if (call := done[number]) is not None}
    return any(atom.calls <= every and not atom.calls.isdisjoint(here) for atom in atoms)


def with_each_other(
    calls: dict[int, Call], wrong: Mapping[int, tuple[Hypothesis, ...]], graph: Graph
) -> dict[int, Call]:
    """Let calls that do what others do again do it with the bugs of these, but for those that let
    them do it: they say how.
    """

    def beside(number: int, call: Call) -> Iterator[tuple[int, tuple[Hypothesis, ...]]]:
        derived = (ref for ref in call.inputs if isinstance(ref, Derived))
        for other in sorted({one.number for ref in derived for one in agains(ref)}):
            own = [bug for bug in wrong[number] if other in {*borrowed(bug, [number], graph)}]
            rest = tuple(bug for bug in wrong.get(other, ()) if bug not in own)
            if rest:
                yield other, rest

    return {
        number: doing_again(graph, call, wrong[number], tuple(beside(number, call)))
        for number, call in calls.items()
    }


def doing_again(
    graph: Graph,
    call: Call,
    own: tuple[Hypothesis, ...],
    others: tuple[tuple[int, tuple[Hypothesis, ...]], ...],
) -> Call:
    """Return a call with bugs of its own that does again what others do with theirs.

    It is the same object each time, since what it gives is kept under that.
    """
    if not others:
        return call
    key = call.number, own, others
    found = graph.rewritten.get(key)
    if found is None:
        every = {number: composed(graph, number, bugs) for number, bugs in others}
        known = {number: one for number, one in every.items() if one is not None}
        found = replace(call, inputs=tuple(with_again(ref, known) for ref in call.inputs))
        graph.rewritten[key] = found
    return found


def agains(ref: Ref) -> Iterator[Again]:
    """Yield what a reference does again, as far as it may be done otherwise."""
    if isinstance(ref, Again):
        yield ref
    elif isinstance(ref, Derived):
        for source in ref.sources:
            yield from agains(source)


def borrowed(hypothesis: Hypothesis, calls: Iterable[int], graph: Graph) -> Iterator[int]:
    """Yield what calls elsewhere do that these do too under a hypothesis, by their numbers."""
    for number in hypothesis.calls & frozenset(calls):
        call = composed(graph, number, (hypothesis,))
        waiting = [*call.inputs] if call is not None else []
        while waiting:
            ref = waiting.pop()
            if isinstance(ref, Again):
                yield ref.number
            waiting += ref.sources if isinstance(ref, Derived) else ()


def composed(graph: Graph, number: int, bugs: tuple[Hypothesis, ...]) -> Call | None:
    """Return one call with several bugs in turn; None if they exclude each other."""
    known = graph.rewritten
    key = number, bugs
    if key not in known:
        known[key] = changed(graph, number, bugs)
    return known[key]


def changed(graph: Graph, number: int, bugs: tuple[Hypothesis, ...]) -> Call | None:
    """Return a call with the last of several bugs too, if it leaves that anything to change."""
    last = bugs[-1]
    if len({bug.id for bug in bugs}) < len(bugs):
        return None
    if len(bugs) == 1:
        return last.rewrite(graph.calls[number], graph)
    before = composed(graph, number, bugs[:-1])
    try:
        return None if before is None else last.rewrite(before, graph) or before
    except Conflict:
        return None
