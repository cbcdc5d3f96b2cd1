"""`explain`: which bugs are in the port that wrote this dump."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.align import Alignment, align
from lockstep.parity.dump import Dump, open_dump
from lockstep.parity.dumped_dtype import computed_in
from lockstep.parity.explain.contradiction import contradictions
from lockstep.parity.explain.counterfactual import counterfactuals
from lockstep.parity.explain.diagnosis import Diagnosis, Named, Unexplained
from lockstep.parity.explain.error_shape import shape_of_error
from lockstep.parity.explain.hypothesis import (
    Atom,
    Hypothesis,
    atoms_in,
    hypotheses,
    rewritten,
)
from lockstep.parity.explain.naming import named, named_by_vote
from lockstep.parity.explain.reach import shown_by_first_token
from lockstep.parity.explain.search import Explanation, Search
from lockstep.parity.explain.trial import Trial
from lockstep.parity.explain.verdict import Chosen, Key, decide, key_of
from lockstep.parity.explain.votes import Ballot, Votes, outvoted
from lockstep.parity.faults import Fault, catalogue
from lockstep.parity.graph import Tensor, record
from lockstep.parity.graph.graph import Graph, Piece
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named

Progress = Callable[[str], None]
NO_TOKENS = (
    "does not say which token ids it was made from: pass --tokens, or put them into its metadata"
)
NOTHING = "nothing was compared: no tensor has the name and the shape of a tap of {model}"
MOST_CONTRADICTIONS = 3
QUIET = 4.0  # noises that a bug may move a value by, to be decided by votes
SETTLED = 3  # pieces that a bug explained, after which it is not compared with others any more


def explain(
    model: Model,
    dump: str | Path | Dump,
    *,
    tokens: Sequence[int] | None = None,
    dtype: str | None = None,
    faults: Iterable[Fault] | None = None,
    progress: Progress = lambda name: None,
) -> Diagnosis:
    """Return every bug that a port has, from what it dumped in one prefill.

    `model` is the reference model that was ported. `tokens` are the prompt's ids where the dump
    does not say them, `dtype` what the port computed in where its values do not show it. `faults`
    are the bugs to think of, the whole catalogue if not given.
    Raises: InputError if the dump is bad, its prompt unknown, or nothing in it can be compared.
    """
    began = time.perf_counter()
    dump = dump if isinstance(dump, Dump) else open_dump(dump)
    prompt = prompt_of(dump, tokens)
    kind, found_out = (dtype, None) if dtype else computed_in(dump)
    graph = record(model, prompt)
    sides = align(dump)
    case = Case(model, graph, sides, kind, tuple(catalogue() if faults is None else faults))
    diagnosis = case.diagnosis(progress)
    diagnosis.conventions += [*sides.plan, *([found_out] if found_out else [])]
    diagnosis.dump, diagnosis.model = str(dump.path), str(model.checkpoint.path)
    diagnosis.seconds = time.perf_counter() - began
    return diagnosis


def prompt_of(dump: Dump, tokens: Sequence[int] | None) -> np.ndarray:
    """Return the token ids (B, L) that a dump was made from."""
    said = dump.tokens if tokens is None else [*tokens]
    if not said:
        raise InputError(dump.path, NO_TOKENS)
    return np.array([said])


class Case:
    """One dump against one model: what is wrong, and what explains it."""

    def __init__(
        self, model: Model, graph: Graph, sides: Alignment, dtype: str, faults: Sequence[Fault]
    ):
        self.model, self.graph, self.sides, self.dtype = model, graph, sides, dtype
        self.misshapen: list[str] = []
        self.dumped = self.values()
        self.tensors: dict[Tensor, Any] = {}
        self.trial = Trial(graph, model.ops, dtype_named(dtype), self.dumped, self.read)
        self.hypotheses = hypotheses(faults, graph)
        self.explained: list[tuple[Piece, list[Explanation]]] = []
        self.right: list[Piece] = []
        self.wrong: list[Piece] = []
        self.open: list[Piece] = []
        self.atoms: dict[int, list[Atom]] = {}

    def values(self) -> dict[int, np.ndarray]:
        """Read what the dump has of each value of the graph."""
        found: dict[int, np.ndarray] = {}
        for tap, number in self.graph.taps.items():
            if tap not in self.sides.names or number in found:
                continue
            value = self.sides.read(tap, self.graph.shapes[number])
            if value.shape == self.graph.shapes[number] and value.dtype.kind not in "iubc":
                found[number] = value
            else:
                self.misshapen.append(tap)
        if not found:
            raise InputError(self.sides.dump.path, NOTHING.format(model=self.model.checkpoint.path))
        return found

    def read(self, tensor: Tensor) -> Any:
        """Read a tensor of the checkpoint; what is small enough is kept."""
        if tensor not in self.tensors:
            checkpoint = self.model.checkpoint
            if tensor.stacked:
                self.tensors[tensor] = checkpoint.stack(tensor.name)
            elif tensor.rows is not None:
                self.tensors[tensor] = checkpoint.tensor_at(tensor.name, tensor.rows)
            else:
                self.tensors[tensor] = checkpoint.tensor(tensor.name)
        return self.tensors[tensor]

    def diagnosis(self, progress: Progress) -> Diagnosis:
        """Judge every piece, explain those that are wrong, and put it together."""
        self.sort(progress)
        self.search(progress)
        chosen = decide(self.explained, self.counts())
        subtle = self.subtle(chosen)
        result = Diagnosis(dtype=self.dtype)
        found = [named(bug, self) for bug in chosen.values()]
        found += [named_by_vote(bug, votes, self) for bug, votes in subtle]
        result.faults = [one for one in found if not self.is_convention(one)]
        result.conventions = [f"{one.id}: {one.wrong}" for one in found if self.is_convention(one)]
        chosen |= {(bug.hypothesis.id, bug.hypothesis.variant): bug for bug, _ in subtle}
        result.unexplained = [self.unexplained(piece) for piece in self.open]
        result.unexplained += [misread(tap, self) for tap in self.misshapen]
        result.compared = len(self.dumped)
        result.unmatched = sorted(
            name for tap, name in self.sides.names.items() if tap not in self.graph.taps
        )
        result.counterfactual = counterfactuals(chosen, self)
        return result

    def sort(self, progress: Progress) -> None:
        """Tell the pieces that are right from those that are wrong."""
        for piece in self.graph.pieces(self.dumped):
            passed = self.trial.judge(piece).passed
            (self.right if passed else self.wrong).append(piece)
            progress(self.tap(piece))

    def search(self, progress: Progress) -> None:
        """Explain the wrong pieces, those of few candidates first: they teach what to try next."""
        known: Counter[Hypothesis] = Counter()
        hopeless: set[tuple[str, ...]] = set()
        for piece in sorted(self.wrong, key=lambda piece: len(self.candidates(piece))):
            search = Search(self.trial, piece, self.candidates(piece))
            before = [atom for atom in search.atoms if atom.hypothesis in known]
            settled = [one for one, times in known.items() if times >= SETTLED]
            kind = tuple(self.graph.calls[number].place for number in piece.calls)
            explanations = search.explanations(before, settled, deep=kind not in hopeless)
            if explanations:
                self.explained.append((piece, explanations))
                known.update({atom.hypothesis for one in explanations for atom in one.atoms})
            else:
                self.open.append(piece)
                hopeless.add(kind)
            progress(self.tap(piece))

    def candidates(self, piece: Piece) -> list[Atom]:
        """Return every hypothesis that touches a piece, wherever it may act there."""
        if piece.target not in self.atoms:
            early = shown_by_first_token(self.trial, piece)
            self.atoms[piece.target] = [
                atom
                for one in self.hypotheses
                for atom in atoms_in(one, piece.calls, early, self.graph)
            ]
        return self.atoms[piece.target]

    def counts(self) -> dict[Key, int]:
        """Count for each bug found where it should have been seen too, and was not."""
        suspects: dict[Key, Hypothesis] = {}
        for _, explanations in self.explained:
            for one in explanations:
                for atom in one.atoms:
                    suspects.setdefault(key_of(atom), atom.hypothesis)
        return {
            key: len(contradictions(one, self.trial, self.right, MOST_CONTRADICTIONS))
            for key, one in suspects.items()
        }

    def subtle(self, chosen: dict[Key, Chosen]) -> list[tuple[Chosen, Votes]]:
        """Return the bugs that no value shows beyond rounding, and whose bits the port has."""
        if self.trial.dtype.itemsize > 2:
            return []  # sums in float32 have too many legal orders for bits to tell
        known: dict[int, frozenset[Atom]] = {}
        for bug in chosen.values():
            for piece, atom in zip(bug.pieces, bug.atoms, strict=True):
                known[piece.target] = known.get(piece.target, frozenset()) | {atom}
        judged = [*self.right, *(piece for piece, _ in self.explained)]
        ballot = Ballot(self.trial, judged, known)
        quiet = [one for one in self.hypotheses if self.is_quiet(one, ballot)]
        return [
            (
                Chosen(one, voters, [Atom(one, one.calls & {*piece.calls}) for piece in voters]),
                votes,
            )
            for one, votes, voters in outvoted(ballot, quiet)
        ]

    def is_quiet(self, hypothesis: Hypothesis, ballot: Ballot) -> bool:
        """Say whether a bug changes something, but nowhere by more than the noise."""
        moved = 0.0
        for pieces in ballot.kinds.values():
            for piece in pieces[:2]:
                here = hypothesis.calls & frozenset(piece.calls)
                calls = here and rewritten([Atom(hypothesis, here)], self.graph)
                if calls:
                    moved = max(moved, self.trial.look(piece, calls).effect(0, None))
        return 0.0 < moved <= QUIET

    def is_convention(self, one: Named) -> bool:
        return next(h for h in self.hypotheses if h.id == one.id).fault.convention

    def tap(self, piece: Piece) -> str:
        """Return the name that the port's dump has for a piece."""
        taps = self.graph.calls[piece.target].taps
        return next(self.sides.names[tap] for tap in taps if tap in self.sides.names)

    def unexplained(self, piece: Piece) -> Unexplained:
        judgement = self.trial.judge(piece)
        return Unexplained(
            tap=self.tap(piece),
            own_error=judgement.own_error,
            noise=judgement.noise,
            shape=shape_of_error(self.trial, piece),
            op=self.graph.calls[piece.target].op,
        )


def misread(tap: str, case: Case) -> Unexplained:
    """Report a tensor whose shape alone is wrong."""
    wanted = list(case.graph.shapes[case.graph.taps[tap]])
    found = list(case.sides.dump.shapes[case.sides.names[tap]])
    return Unexplained(case.sides.names[tap], 1.0, 0.0, f"shape {found}, but should be {wanted}")
