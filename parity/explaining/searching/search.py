"""Find the smallest sets of bugs that explain one piece."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import (
    Atoms,
    acausal,
    count,
    distinct,
    in_parts,
    in_rows,
    smallest,
    widest,
)
from lockstep.parity.explaining.searching.beginnings import may_be_alone, speaks
from lockstep.parity.explaining.searching.brought import beside_what_is_brought
from lockstep.parity.explaining.searching.by_few_tokens import DEEPEST, ByFewTokens
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.explaining.searching.last_step import NEAR, last_steps
from lockstep.parity.explaining.searching.look import FAR
from lockstep.parity.explaining.searching.one_more import one_more
from lockstep.parity.explaining.searching.pace import Pace
from lockstep.parity.explaining.searching.price import BUDGET
from lockstep.parity.explaining.searching.right_beginning import leaving_right
from lockstep.parity.explaining.searching.seen import PAIRS, VISIBLE
from lockstep.parity.explaining.searching.segments import Segments
from lockstep.parity.explaining.searching.settling import COARSE
from lockstep.parity.explaining.searching.siblings import with_siblings
from lockstep.parity.explaining.searching.stages import stages

SMALL = 0.03  # of the error that is left: less is not tried yet
BEAM = 8
MOST_KNOWN = 10  # known bugs of which every subset is tried
TOGETHER = 64  # sets that are looked at before the budget is asked again
ALL_TOKENS = 3  # times as many where no token can be looked at before the others

Attempt = Callable[[list[Atoms], Sequence[Atom]], list[Atoms]]


@dataclass
class Search(ByFewTokens):
    """The search over one piece."""

    narrow: Sequence[Atom] = ()  # more of them, each in one module of one layer of a large piece
    unpaired: Collection[Hypothesis] = ()  # bugs that are not tried beside others
    start: int = 0
    budget: int = BUDGET
    most: int = BUDGET  # of a search that has all of its work
    brief: bool = False  # token by token alone, after like pieces were searched in vain
    alike_known: bool = False  # whether a like piece is explained already

    def explanations(
        self,
        known: Sequence[Atom],
        settled: Collection[Hypothesis],
        taught: Sequence[Atoms] = (),
        elsewhere: Sequence[Atoms] = (),
        *,
        deep: bool,
    ) -> list[Explanation]:
        """Return all smallest sets that explain the piece; none if nothing found does.

        First what like pieces were `taught`, and what others have `elsewhere`, then what any other
        is known to suffer from, then single bugs, then, if `deep`, sets. What is `settled` needs no
        more comparing with what might do as well.
        """
        self.start, self.alike_known = self.trial.count, bool(taught)
        begun = [*taught, *elsewhere]
        found = self.as_taught(begun) or self.among(known)
        if self.cleared is not None:
            return []
        if found and all(atom.hypothesis in settled for atom in found[0]):
            return self.told(found)
        early = not deep and speaks(self)
        visible = self.visible(self.early(self.atoms) if early else self.atoms)
        blind = self.trial.blind(self.piece.target)
        found = found or self.singles(visible) or self.in_one_module(visible, early=early)
        found = found or beside_what_is_brought(self)
        found = found or self.of_known(known, begun)
        found = found or (self.beside_known(known, visible) if blind else [])
        deep = deep and not blind and self.cleared is None
        found = found or (one_more(self, taught, visible) if deep and taught else [])
        found = found or (self.sets(self.beside_others(visible), known, begun) if deep else [])
        if self.cleared is not None:
            return []
        others = self.visible(self.atoms) if found else []
        return self.told(with_siblings(self, found, others), complete=not self.spent)

    def visible(self, atoms: Sequence[Atom]) -> list[Atom]:
        """Return the bugs that show alone; each is looked at once, however many they are."""
        before = self.trial.count
        self.look_at(map(self.alone, atoms), None)
        self.start += self.trial.count - before
        return [atom for atom in atoms if self.possible(atom)]

    def early(self, atoms: Sequence[Atom]) -> list[Atom]:
        """Return those that the first tokens allow; each is looked at once for it."""
        before = self.trial.count
        found = may_be_alone(self, atoms)
        self.start += self.trial.count - before
        return found

    def beside_others(self, visible: Sequence[Atom]) -> list[Atom]:
        """Return the bugs of which sets are made; of few bugs those that hardly show alone too."""
        few = len(self.atoms) <= PAIRS
        moving = filter(self.moves, self.atoms) if few else visible
        paired = [atom for atom in moving if atom.hypothesis not in self.unpaired]
        return leaving_right(self, paired)

    def told(self, found: Iterable[Atoms], *, complete: bool = False) -> list[Explanation]:
        judged = {atoms: self.judged[atoms] for atoms in found}
        every = ((atoms, one) for atoms, one in judged.items() if one is not None)
        return [Explanation(atoms, one, complete) for atoms, one in every]

    def as_taught(self, taught: Sequence[Atoms]) -> list[Atoms]:
        """Return the smallest of the sets that explained other pieces, where they do here."""
        found = (self.needed(atoms) for atoms in taught if self.explains(atoms, patient=True))
        return smallest(filter(self.earned, found))

    def of_known(self, known: Sequence[Atom], taught: Sequence[Atoms]) -> list[Atoms]:
        """Explain the piece by known bugs alone, wherever they act, seen by themselves or not."""
        if not known or self.cleared is not None:
            return []
        most, self.patient, self.budget = self.budget, True, self.most // 4
        found = self.attempted([[*taught, frozenset()]], known)
        self.patient, self.budget = False, most
        return found

    def beside_known(self, known: Sequence[Atom], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain a piece that has the same for every token by one bug beside those that are known.

        Many sets of others would leave that.
        """
        known = [atom for atom in known if atom in visible]
        larger = [some | {one} for some in widest(known) for one in visible if one not in some]
        self.look_at(larger, None)
        found = [self.fewest(atoms) for atoms in larger if self.explains(atoms)]
        return smallest(filter(self.earned, found))

    def among(self, known: Sequence[Atom]) -> list[Atoms]:
        """Return the smallest sets of known bugs that explain the piece."""
        visible = [atom for atom in known if self.effect(atom, 0, None) > VISIBLE]
        found = self.singles(visible, patient=True)
        if found:
            return found
        here = sorted(visible, key=lambda atom: -len(atom.calls))[:MOST_KNOWN]
        for size in range(2, min(len(here), DEEPEST) + 1):
            found = [
                frozenset(some) for some in combinations(here, size)
                if count(some) == size and not self.spent and self.settles(frozenset(some))
            ]  # fmt: skip
            if found:
                return found
        return []

    def singles(self, visible: Sequence[Atom], *, patient: bool = False) -> list[Atoms]:
        alone = (frozenset([atom]) for atom in visible)
        return [atoms for atoms in alone if self.settles(atoms, patient=patient)]

    def in_one_module(self, visible: Sequence[Atom], *, early: bool) -> list[Atoms]:
        """Explain a large piece by a bug in one module of one layer, if it shows wherever it is.

        Where few are looked at whole, by one that `early` tokens allow.
        """
        shown = {atom.hypothesis for atom in visible}
        some = (atom for atom in self.narrow if early or atom.hypothesis in shown)
        found: list[Atoms] = []
        before, began = self.trial.count, self.start
        for part in in_parts(some, TOGETHER):
            if self.cleared is not None or self.trial.count - before > self.most:
                break
            alone = [*map(self.alone, self.early(part) if early else part)]
            self.look_at(alone, None)
            found += [atoms for atoms in alone if self.settles(atoms)]
        self.start = began + self.trial.count - before  # its work has a limit of its own
        return found

    def sets(
        self, visible: Sequence[Atom], known: Sequence[Atom], taught: Sequence[Atoms]
    ) -> list[Atoms]:
        """Explain the piece on top of what is known to be wrong elsewhere, else from nothing."""
        here = [*taught, *widest(atom for atom in known if atom in visible)]
        return self.attempted(([here] if here else []) + [[frozenset[Atom]()]], visible)

    def attempted(self, ways: list[list[Atoms]], candidates: Sequence[Atom]) -> list[Atoms]:
        """Return the smallest sets that the first attempt of all finds."""
        most = self.budget
        for attempt, share, tries in self.attempts(ways, candidates):
            for starts in tries:
                self.start = self.trial.count
                self.budget = share * most if starts == tries[-1] else share * most // 2
                found = attempt(starts, candidates)
                self.budget = most
                needed = [*filter(self.earned, map(self.fewest, found))]
                if needed or self.cleared is not None:
                    return smallest(needed)
        return []

    def attempts(
        self, ways: list[list[Atoms]], candidates: Sequence[Atom]
    ) -> Iterator[tuple[Attempt, int, list[list[Atoms]]]]:
        """Yield how to search, with how large a budget, and from which sets, one try after another.

        What comes near to a few tokens stands for all ways; if nothing does, each goes on alone. It
        comes before the stages, which use their work up where the first token needs several bugs,
        and behind them where one bug more explains it: then they take seconds. What leads straight
        on from there takes little, and comes first.

        Where like pieces are explained, what no formula gives is likelier than quite another set,
        so that no start from nothing is tried. Behind a router a computation takes several times as
        long, and a try of `staged` up to its budget twice: token by token, then without the first.
        """
        begun = [atoms for starts in ways for atoms in starts]
        ways = ways[:1] if self.alike_known else ways
        in_stages = self.brief or self.patient or self.begins(begun, candidates)
        yield (self.staged, 1, ways) if in_stages else (self.from_sure, 1, [begun])
        if self.brief:
            return
        if leads := self.leads():
            yield self.straight, 1, [leads]
        near = self.near(begun, candidates)
        if new := [lead for lead in self.leads() if lead not in leads]:
            yield self.straight, 1, [new]
        if near:
            yield self.from_near, 1, [near]
        if not in_stages:
            yield self.staged, 1, ways
        if not near or self.routed:  # there one of a few tokens may have been sent elsewhere
            yield self.at_once, 1 if self.routed or self.alike_known else ALL_TOKENS, ways

    def begins(self, known: list[Atoms], visible: Sequence[Atom]) -> bool:
        """Say whether one bug more explains the first token."""
        self.start = self.trial.count
        return bool(self.stage(known, self.distinct(visible, 0, 1), 1, 0, deepest=1))

    def staged(self, solutions: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain the first token, then those within the window, then the rest.

        What a token cannot show it need not explain: alone, it shows no rope, no mask, no scale of
        attention. Each stage goes on from the sets that explained the one before.
        """
        found = self.in_stages(solutions, visible)
        whole = [atoms for atoms in solutions if atoms and (self.routed or acausal(atoms))]
        if found or self.patient or not whole:
            return found
        return self.without_first(whole, visible)

    def without_first(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens together, by what is known and a few bugs more.

        At the first token a rounding may have turned a router: then no right set explains it. If a
        bug lets it see later ones, it shows what others do. That has a budget of its own, as large
        as that of the stages, which are often used up.
        """
        self.start = self.trial.count
        nearest = sorted(known, key=lambda atoms: self.fit(atoms)[0])[:NEAR]
        return self.stage(nearest, self.distinct(visible, 0, None), None, 0, deepest=2)

    def in_stages(self, solutions: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        before = 0
        for rows in stages(self.piece, self.trial.graph):
            shown = [atom for atom in visible if self.shows(atom, before, rows)]
            new = [atom for atom in shown if not before or self.effect(atom, 0, before) < VISIBLE]
            found = self.first(solutions, shown) if rows == 1 else []
            for some in (new, shown):  # what the tokens before did not show; then, whatever it is
                if found:
                    break
                most, self.budget = self.budget, self.budget // (2 if some is new else 1)
                found = self.stage(solutions, self.distinct(some, before, rows), rows, before)
                self.budget = most
            if not found:
                return []
            solutions, before = found, rows or 0
        return solutions

    def shows(self, atom: Atom, first: int, last: int | None) -> bool:
        return self.patient or self.effect(atom, first, last) > self.least

    def first(self, solutions: list[Atoms], shown: Sequence[Atom]) -> list[Atoms]:
        """Explain the first token: by one bug more, else from nothing by a few on any side."""
        if self.patient:
            return []
        found = self.stage(solutions, self.distinct(shown, 0, 1), 1, 0, deepest=1)
        if found or self.cleared is not None or solutions != [frozenset()]:
            return found
        before = self.trial.count
        found = Segments(self.trial, self.piece, shown, self.effort).sets(self.close)[:BEAM]
        self.start += self.trial.count - before  # its work has a limit of its own
        return found

    def at_once(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens together, with at least one bug that lets a token see later ones.

        Then no token can be looked at before the others. Where no bug does, as in a norm, one token
        alone may be explained by chance: its error is a factor, and many sets give that.
        """
        shown = self.distinct(visible, 0, None)
        return self.stage(self.acausal(known, shown) or known, shown, None, 0)

    def straight(self, leads: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Go from each set by the bug that brings it nearest by some measure: small ones add up."""
        shown = self.distinct(visible, 0, None)
        ends = (self.stage([lead], shown, None, 0, keep=1) for lead in leads)
        return next(filter(None, ends), [])

    def from_near(self, near: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens together, from the sets that come near to a few of them."""
        return self.stage(near, self.distinct(visible, 0, None), None, 0)

    def from_sure(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens by sets that leave nothing of a few but noise: these take seconds."""
        sure = self.sure(known, visible)
        return self.stage(sure, self.distinct(visible, 0, None), None, 0, deepest=0)

    def stage(
        self,
        starts: list[Atoms],
        candidates: Sequence[Atom],
        rows: int | None,
        skip: int,
        deepest: int = DEEPEST,
        keep: int = BEAM,
    ) -> list[Atoms]:
        """Return the smallest sets, on top of earlier ones, that explain the tokens of a stage."""
        beam, pace, stalled = starts, Pace(), False
        for depth in range(deepest + 1):
            found = [atoms for atoms in beam if self.accepts(atoms, skip, rows)]
            found = found or (self.finished(beam, candidates) if rows is None else [])
            if found:
                return found[:BEAM]
            if not beam or self.spent or stalled or depth == deepest:
                break
            wide = depth == 0 and len(candidates) <= PAIRS and keep == BEAM
            beam = self.grown(beam, candidates, rows, skip, keep=len(candidates) if wide else keep)
            stalled = rows is None and not self.patient and pace.stalls(self.nearest(beam))
        return []

    def finished(self, beam: list[Atoms], candidates: Sequence[Atom]) -> list[Atoms]:
        """Return the sets that explain the piece, of those that all but do, changed in one bug."""
        changed = last_steps(self, beam, candidates)
        return [atoms for atoms in changed if not self.spent and self.settles(atoms)]

    def accepts(self, atoms: Atoms, skip: int, rows: int | None) -> bool:
        """Say whether a stage may end with a set; the last one as the whole piece is judged."""
        if rows is None:
            return bool(atoms) and self.explains(atoms)
        return self.fit(atoms, skip, rows)[0] <= self.close * (COARSE if self.coarse(atoms) else 1)

    def grown(
        self, beam: list[Atoms], candidates: Sequence[Atom], rows: int | None, skip: int, keep: int
    ) -> list[Atoms]:
        """Add each candidate to each set; keep the best by each measure.

        What moves a value by far less than is still to be explained can wait.
        """
        larger = {
            atoms | self.alone(atom): None
            for atoms in beam
            for atom in self.large(candidates, SMALL * min(self.fit(atoms, skip, rows)), skip, rows)
            if atom not in atoms
        }
        fits = {}
        had = {self.fit(atoms, skip, rows) for atoms in beam}
        for some in in_parts(larger, TOGETHER):
            if self.spent:
                break
            for last in dict.fromkeys((None, rows)):
                self.look_at((one for one in some if in_rows(one, rows) == last), last)
            fits |= {atoms: self.fit(atoms, skip, rows) for atoms in some}
        had = set() if self.patient else had  # alone, what others show may move nothing
        possible = [atoms for atoms, fit in fits.items() if fit[0] < FAR and fit not in had]
        best: dict[Atoms, None] = {}
        for measure in range(3):
            errors = {atoms: fits[atoms][measure] for atoms in possible}
            best |= dict.fromkeys(distinct(errors, keep))
        return list(best)

    def nearer(self, rest: Atoms, atom: Atom, others: Sequence[Atom]) -> list[Atom]:
        before = self.trial.count
        found = super().nearer(rest, atom, others)
        self.start += self.trial.count - before  # a look at each bug, however many
        return found

    @property
    def spent(self) -> bool:
        return super().spent or self.trial.count - self.start > self.budget
