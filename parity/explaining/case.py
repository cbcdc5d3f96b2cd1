"""One dump against one model: which pieces are wrong, and what explains each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice

import numpy as np

from lockstep.parity.explaining.caches.found import Cached
from lockstep.parity.explaining.conventions.decimals import read_decimals
from lockstep.parity.explaining.deciding.contradiction import Beside, contradictions
from lockstep.parity.explaining.deciding.verdict import Key, key_of
from lockstep.parity.explaining.dumped import Dumped
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.other_prompt import nothing_compared
from lockstep.parity.explaining.other_weights import has_weights, holding, most, shown_alone
from lockstep.parity.explaining.searching.exchange import exchange
from lockstep.parity.explaining.searching.hypothesis import (
    Atom,
    Hypothesis,
    atoms_in,
    borrowed,
    hypotheses,
    in_one_module,
)
from lockstep.parity.explaining.searching.lone import sure
from lockstep.parity.explaining.searching.look import FAR
from lockstep.parity.explaining.searching.moved import in_same_modules, moved
from lockstep.parity.explaining.searching.no_numbers import tells
from lockstep.parity.explaining.searching.packing import packing
from lockstep.parity.explaining.searching.price import BUDGET, most_computations
from lockstep.parity.explaining.searching.reach import shown_by_first_token
from lockstep.parity.explaining.searching.rounded_anyway import but_rounded_anyway
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.steps.steps import Joined, fill_up, unseen_rows
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults.fault import Fault
from lockstep.parity.graph import Graph, Tensor
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import Judgement
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named

Progress = Callable[[str], None]
MOST_CONTRADICTIONS = 3
ALIKE = 3  # explanations by several bugs that are tried on like pieces, beside those by one
TAUGHT = 12  # explanations of like pieces that are tried on one
DEAR = 8_000  # computations in vain, after which a search does half of its work
IN_VAIN = 2  # pieces of a kind that are searched deeply without a find
FEW_WEIGHTS = 4  # in a piece: of larger ones, whose search is dear, one such is enough
BESIDE = 1 / 2  # of the work of a search, where like pieces show most of what is wrong
STRANGE = 1 / 4  # of the work of a search, where most weights are none of the checkpoint's
SETTLED = 3  # pieces that a bug explained, after which it is not compared with others any more


class Case:
    """The pieces of a dump, and the hypotheses that may explain them.

    Raises: InputError if nothing in the dump can be compared.
    """

    def __init__(
        self, model: Model, graph: Graph, sides: Joined, dtype: str, faults: Sequence[Fault]
    ):
        self.model, self.graph, self.sides, self.dtype = model, graph, sides, dtype
        self.faults = {one.id: one for one in faults}
        self.misshapen: list[str] = []
        self.twins: dict[str, np.ndarray] = {}  # a value's second tap, where that says otherwise
        self.read = Tensors(model.checkpoint)
        self.dumped = self.values()
        self.trial = Trial(graph, model.ops, dtype_named(dtype), self.dumped, self.read)
        self.trial.unseen = unseen_rows(sides, graph)
        self.written = [*read_decimals(self.trial)]
        fill_up(self.trial, sides.unknown, (self.dumped, self.twins))
        self.cached = Cached()
        every = hypotheses(faults, graph)
        self.hypotheses = [
            one for one in every if one.fault.dtypes.get(one.variant, dtype) == dtype
        ]
        self.judged: dict[int, Judgement] = {}  # of each piece as it was dumped, by its target
        self.right: list[Piece] = []
        self.wrong: list[Piece] = []
        self.explained: list[tuple[Piece, list[Explanation]]] = []
        self.open: list[Piece] = []
        self.atoms: dict[int, list[Atom]] = {}
        self.beside = Beside(self.trial, self.right)

    def values(self) -> MutableMapping[int, np.ndarray]:
        """Return what the dump has. Raises: InputError if that is nothing."""
        found = self.held()
        if not found and not self.sides.caches:
            raise nothing_compared(self.sides, self.graph, self.model.checkpoint)
        return found

    def held(self) -> MutableMapping[int, np.ndarray]:
        """Look at what the dump has of each value of the graph; it is read again when needed."""
        found: dict[int, str] = {}
        for tap in self.own_tokens_first(self.graph.taps):
            number = self.graph.taps[tap]
            if tap not in self.sides.names or tap in self.sides.caches:
                continue
            value = self.sides.read(tap, self.graph.shapes[number])
            if value.shape != self.graph.shapes[number] or value.dtype.kind in "iubc":
                self.misshapen.append(tap)
            elif number not in found:
                found[number] = tap
            elif not np.array_equal(value, self.again(found[number], number), equal_nan=True):
                self.twins[tap] = value
        return Dumped(self.sides, self.graph, found)

    def own_tokens_first(self, taps: Iterable[str]) -> list[str]:
        """Put taps behind the others whose tokens are taken from another one."""
        return sorted(taps, key=self.sides.beside.__contains__)

    def again(self, tap: str, number: int) -> np.ndarray:
        """Read a tap once more; what was moved in it is counted once."""
        return replace(self.sides, moved=Counter()).read(tap, self.graph.shapes[number])

    def in_dtype(self, dtype: str) -> Case:
        """Return the same dump, of which nothing is judged yet, as one of a port in another dtype.

        What is told of it there is not told here.
        """
        sides = replace(self.sides, moved=Counter())
        return Case(self.model, self.graph, sides, dtype, [*self.faults.values()])

    def sort(self, progress: Progress) -> None:
        """Tell the pieces that are right from those that are wrong."""
        for piece in filter(self.decides, self.graph.pieces(self.dumped)):
            judgement = self.judged[piece.target] = self.trial.judge(piece)
            (self.right if judgement.passed else self.wrong).append(piece)
            progress(self.tap(piece))

    def twin(self, tap: str) -> np.ndarray:
        """Return a value's second tap, as it is judged."""
        return self.twins[tap]

    def decides(self, piece: Piece) -> bool:
        """Say whether a piece can be judged by what is known."""
        return tells(piece, self.trial)

    def doubt(self, piece: Piece) -> str:
        """Return what has to be said with a piece that is wrong and has no name."""
        return ""

    def set_aside(self) -> None:
        """Take pieces out of those that are open, if they prove nothing about a port."""

    def search(self, progress: Progress) -> None:
        """Explain the wrong pieces that are open, those of few candidates first: they teach what to
        try next.

        Where a search found nothing, that over like pieces of other layers stays shallow, until all
        others taught what they could. Of small pieces it is where two searches found nothing: one
        layer may have what nobody knows. One more is searched token by token before that. What was
        searched in vain leaves less work for other pieces, as long as nothing more is known. Of
        what has weights one alone is, where most are not the checkpoint's. Then like pieces try
        each other's explanations.
        """
        known: Counter[Hypothesis] = Counter(self.bugs())
        in_vain: Counter[tuple[tuple[str, ...], int]] = Counter()  # a kind, and how much was known
        spent: Counter[int] = Counter()  # computations in vain, by how much was known
        done = {piece.target for piece, _ in self.explained}
        waiting, self.open = [one for one in self.by_ease() if one.target not in done], []
        while waiting:
            taught = len(known)
            for piece in waiting:
                now, before = (self.graph.kind(piece), len(known)), self.trial.count
                vain, patience = in_vain[now], self.patience(piece)
                deep, brief = vain <= patience, vain == patience
                effort = 1 / (1 + spent[now[1]] / DEAR)
                effort *= STRANGE if self.strange(piece) else 1
                if not self.explain(piece, known, deep=deep, brief=brief, effort=effort):
                    in_vain[now] += 1
                    share = (self.trial.count - before) / self.work(piece)
                    spent[now[1]] += round(BUDGET * share)
                progress(self.tap(piece))
            waiting = self.open if len(known) > taught else []
            self.open = [] if waiting else self.open
        exchange(self)

    @cached_property
    def matrices(self) -> frozenset[int]:
        """The values that show one matrix alone, of those that are judged."""
        return shown_alone([*self.right, *self.wrong], self.graph)

    @cached_property
    def shows_packing(self) -> bool:
        """Say whether a matrix of some layer shows alone, which says how all of them are packed."""
        return any(self.graph.calls[number].layer is not None for number in self.matrices)

    @cached_property
    def holders(self) -> frozenset[int]:
        """The values that some matrix makes, of those that are judged."""
        return holding([*self.right, *self.wrong], self.graph)

    def strange(self, piece: Piece) -> bool:
        """Say whether a piece has weights, where most matrices are none of the checkpoint's."""
        return has_weights(piece, self.graph) and self.of_other_weights()

    def of_other_weights(self) -> bool:
        fits = [*self.right, *(piece for piece, _ in self.explained)]
        return most(self.matrices, self.holders, self.open, fits)

    def patience(self, piece: Piece) -> int:
        """Return how many like pieces are searched deeply without a find."""
        if self.strange(piece):
            return 0
        refs = (ref for number in piece.calls for ref in self.graph.calls[number].inputs)
        weights = sum(isinstance(ref, Tensor) for ref in refs)
        dear = weights > FEW_WEIGHTS or self.work(piece) < BUDGET
        return 1 if dear else IN_VAIN

    def work(self, piece: Piece) -> int:
        """Return how many computations a search over a piece may make."""
        return most_computations(self.trial, piece)

    def by_ease(self) -> list[Piece]:
        """Return the pieces judged wrong: of few candidates first; of like ones the least wrong.

        Where the error is small, each bug adds its own part to it: one shows beside the others.
        """
        least: dict[tuple[str, ...], int] = {}
        errors: dict[int, float] = {}
        for piece in (wrong := [one for one in self.wrong if one.target in self.judged]):
            kind, error = self.graph.kind(piece), self.judged[piece.target].own_error
            count = len(self.candidates(piece))
            least[kind] = min(least.get(kind, count), count)
            errors[piece.target] = error if error < FAR else FAR  # it may be no number
        return sorted(wrong, key=lambda one: (least[self.graph.kind(one)], errors[one.target]))

    def explain(
        self,
        piece: Piece,
        known: Counter[Hypothesis],
        *,
        deep: bool,
        brief: bool = False,
        effort: float = 1.0,
    ) -> bool:
        """Search for what explains one piece, if it is wrong; say whether anything does.

        `effort` is the share of the usual work that a deep search may do.
        """
        narrow = [
            atom for one in self.hypotheses for atom in in_one_module(one, piece.calls, self.graph)
        ]
        taught = self.taught(piece)
        effort *= BESIDE if taught else 1
        search = self.search_over(piece, narrow, brief=brief, effort=effort)
        packed = packing(self.hypotheses, known)
        search.unpaired = packed if self.shows_packing else ()
        if not deep and self.work(piece) < BUDGET:
            search.atoms = [atom for atom in search.atoms if atom.hypothesis not in packed]
        before = [atom for atom in search.atoms if atom.hypothesis in known]
        settled = [one for one, times in known.items() if times >= SETTLED]
        elsewhere = [] if taught else self.elsewhere(piece)
        explanations = search.explanations(before, settled, taught, elsewhere, deep=deep)
        if (cleared := search.cleared) is not None:
            self.clear(piece, cleared)
            return True
        if explanations:
            self.explained.append((piece, explanations))
            known.update({atom.hypothesis for one in explanations for atom in one.atoms})
        else:
            self.open.append(piece)
        return bool(explanations)

    def search_over(
        self, piece: Piece, narrow: Sequence[Atom] = (), *, brief: bool = False, effort: float = 1.0
    ) -> Search:
        """Return the search over a piece, with what is known of like ones."""
        return Search(
            self.trial, piece, self.candidates(piece),
            narrow=narrow, proven=self.proven(piece),
            brief=brief, effort=effort, work=self.work(piece),
        )  # fmt: skip

    def clear(self, piece: Piece, judgement: Judgement) -> None:
        """Put a piece that turned out to be right with those that are, and count anew by it."""
        self.wrong = [one for one in self.wrong if one.target != piece.target]
        self.explained = [entry for entry in self.explained if entry[0].target != piece.target]
        self.right.append(piece)
        self.judged[piece.target] = judgement
        self.beside.counted.clear()
        self.atoms.clear()

    def bugs(self) -> Iterator[Hypothesis]:
        """Yield the bugs of every explanation."""
        sets = (one.atoms for _, some in self.explained for one in some)
        return (atom.hypothesis for atoms in sets for atom in atoms)

    def explained_after_all(self, piece: Piece) -> bool:
        """Say whether bugs explain a piece that was read as random numbers: one of any, or several
        of those that explain others.
        """
        known = Counter({*self.bugs()})
        if known and self.explain(piece, known, deep=False):
            return True
        self.open = [one for one in self.open if one is not piece]
        return False

    def proven(self, piece: Piece) -> set[Hypothesis]:
        """Return the bugs without which some like piece cannot be explained."""
        kind = self.graph.kind(piece)
        like = (some for other, some in self.explained if self.graph.kind(other) == kind)
        sets = ([one.bugs for one in some] for some in like)
        return {bug for some in sets for bug in sure(some)}

    def taught(self, piece: Piece) -> list[frozenset[Atom]]:
        """Return what explains like pieces, as it would act in this one."""
        found: dict[frozenset[Atom], None] = {}
        for other, explanations in reversed(self.explained):
            if self.graph.kind(other) == self.graph.kind(piece):
                theirs, ours = (sorted(self.calls(one)) for one in (other, piece))
                if len(theirs) != len(ours):  # a bug brings more into one of them
                    theirs, ours = other.calls, piece.calls
                here = dict(zip(theirs, ours, strict=True))
                few = explanations[:ALIKE]
                few += [one for one in explanations[ALIKE:] if len(one.atoms) == 1]
                for one in few:
                    found |= dict.fromkeys(moved(one.atoms, here, self.hypotheses, self.graph))
        return sorted(filter(None, found), key=len)[:TAUGHT]

    def elsewhere(self, piece: Piece) -> list[frozenset[Atom]]:
        """Return what explains pieces of other kinds, in the modules of the same names."""
        kind_of = self.graph.kind
        others = (some for it, some in reversed(self.explained) if kind_of(it) != kind_of(piece))
        sets = (in_same_modules(one.atoms, piece, self.graph) for some in others for one in some)
        return list(islice(dict.fromkeys(atoms for atoms in sets if len(atoms) > 1), ALIKE))

    def candidates(self, piece: Piece) -> list[Atom]:
        """Return every hypothesis that touches a piece, wherever it may act there."""
        if piece.target not in self.atoms:
            early, calls = shown_by_first_token(self.trial, piece), self.calls(piece)
            atoms = (
                atom
                for one in self.hypotheses
                for atom in atoms_in(one, piece.calls if one.whole else calls, early, self.graph)
                if not (one.whole and self.beside(atom))
            )
            self.atoms[piece.target] = [*but_rounded_anyway(atoms, piece, self.trial)]
        return self.atoms[piece.target]

    def forget(self, given_up: Collection[Hypothesis]) -> None:
        """Think of some hypotheses no more."""
        self.hypotheses = [one for one in self.hypotheses if one not in given_up]
        self.atoms.clear()  # made again from what is left

    def calls(self, piece: Piece) -> frozenset[int]:
        """Return the calls of a piece, and those that a bug of several calls brings into it."""
        whole = (one for one in self.hypotheses if one.whole)
        return frozenset(piece.calls).union(
            *(borrowed(one, piece.calls, self.graph) for one in whole)
        )

    def contradicted(self) -> dict[Key, int]:
        """Count where each bug found should have been seen too: not where one layer is lost."""
        suspects = {
            key_of(atom): atom.hypothesis
            for _, explanations in self.explained
            for one in explanations
            for atom in one.atoms
            if not atom.hypothesis.fault.behind
        }
        return {
            key: len(contradictions(one, self.trial, self.right, MOST_CONTRADICTIONS))
            for key, one in suspects.items()
        }

    def tap(self, piece: Piece) -> str:
        """Return the name that the port's dump has for a piece."""
        taps = self.own_tokens_first(self.graph.calls[piece.target].taps)
        return next(self.sides.names[tap] for tap in taps if tap in self.sides.names)
