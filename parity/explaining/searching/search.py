"""Find the smallest sets of bugs that explain one piece."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms, in_parts, smallest, widest
from lockstep.parity.explaining.searching.beginnings import may_be_alone, speaks
from lockstep.parity.explaining.searching.brought import beside_what_is_brought
from lockstep.parity.explaining.searching.by_stages import ByStages
from lockstep.parity.explaining.searching.growing import TOGETHER
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.explaining.searching.known import among, as_taught, beside_known, of_known
from lockstep.parity.explaining.searching.one_more import one_more
from lockstep.parity.explaining.searching.right_beginning import leaving_right
from lockstep.parity.explaining.searching.seen import PAIRS
from lockstep.parity.explaining.searching.siblings import with_siblings

ALL_TOKENS = 3  # times as many where no token can be looked at before the others

Attempt = Callable[[list[Atoms], Sequence[Atom]], list[Atoms]]


@dataclass
class Search(ByStages):
    """The search over one piece."""

    narrow: Sequence[Atom] = ()  # more of them, each in one module of one layer of a large piece
    unpaired: Collection[Hypothesis] = ()  # bugs that are not tried beside others
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
        self.budget.begin()
        self.alike_known = bool(taught)
        begun = [*taught, *elsewhere]
        found = as_taught(self, begun) or among(self, known)
        if self.cleared is None and found and all(one.hypothesis in settled for one in found[0]):
            return self.explained_by(found)
        if not found and self.cleared is None:
            found = next(filter(None, self.tries(known, taught, begun, deep=deep)), [])
        if self.cleared is not None:
            return []
        others = self.visible(self.atoms) if found else []
        return self.explained_by(with_siblings(self, found, others), complete=not self.spent)

    def tries(
        self, known: Sequence[Atom], taught: Sequence[Atoms], begun: list[Atoms], *, deep: bool
    ) -> Iterator[list[Atoms]]:
        """Yield what explains the piece, in one way after another, those first that take least."""
        early = not deep and speaks(self)
        visible = self.visible(self.early(self.atoms) if early else self.atoms)
        yield self.singles(visible)
        yield self.in_one_module(visible, early=early)
        yield beside_what_is_brought(self)
        yield of_known(self, known, begun)
        if self.trial.blind(self.piece.target):
            yield beside_known(self, known, visible)
        elif deep and self.cleared is None:
            yield one_more(self, taught, visible) if taught else []
            yield self.sets(self.beside_others(visible), known, begun)

    def explained_by(self, found: Iterable[Atoms], *, complete: bool = False) -> list[Explanation]:
        """Return sets with what was judged of them."""
        judged = {atoms: self.judged[atoms] for atoms in found}
        every = ((atoms, one) for atoms, one in judged.items() if one is not None)
        return [Explanation(atoms, one, complete) for atoms, one in every]

    def visible(self, atoms: Sequence[Atom]) -> list[Atom]:
        """Return the bugs that show alone; each is looked at once, however many they are."""
        with self.budget.uncounted():
            self.look_at(map(self.alone, atoms), None)
        return [atom for atom in atoms if self.possible(atom)]

    def early(self, atoms: Sequence[Atom]) -> list[Atom]:
        """Return those that the first tokens allow; each is looked at once for it."""
        with self.budget.uncounted():
            return may_be_alone(self, atoms)

    def beside_others(self, visible: Sequence[Atom]) -> list[Atom]:
        """Return the bugs of which sets are made; of few bugs those that hardly show alone too."""
        few = len(self.atoms) <= PAIRS
        moving = filter(self.moves, self.atoms) if few else visible
        paired = [atom for atom in moving if atom.hypothesis not in self.unpaired]
        return leaving_right(self, paired)

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
        last = self.trial.count + self.work
        with self.budget.uncounted():
            for part in in_parts(some, TOGETHER):
                if self.cleared is not None or self.trial.count > last:
                    break
                alone = [*map(self.alone, self.early(part) if early else part)]
                self.look_at(alone, None)
                found += [atoms for atoms in alone if self.settles(atoms)]
        return found

    def sets(
        self, visible: Sequence[Atom], known: Sequence[Atom], taught: Sequence[Atoms]
    ) -> list[Atoms]:
        """Explain the piece on top of what is known to be wrong elsewhere, else from nothing."""
        here = [*taught, *widest(atom for atom in known if atom in visible)]
        return self.attempted(([here] if here else []) + [[frozenset[Atom]()]], visible)

    def attempted(self, ways: list[list[Atoms]], candidates: Sequence[Atom]) -> list[Atoms]:
        """Return the smallest sets that the first attempt of all finds."""
        for attempt, share, tries in self.attempts(ways, candidates):
            most = share * self.budget.limit
            for starts in tries:
                self.budget.begin()
                with self.budget.of(most if starts == tries[-1] else most // 2):
                    found = attempt(starts, candidates)
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
        self.budget.begin()
        return bool(self.by_one_more(known, visible))

    def from_sure(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens by sets that leave nothing of a few but noise: these take seconds."""
        sure = self.sure(known, visible)
        return self.stage(sure, self.distinct(visible, 0, None), None, 0, deepest=0)

    def straight(self, leads: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Go from each set by the bug that brings it nearest by some measure: small ones add up."""
        shown = self.distinct(visible, 0, None)
        ends = (self.stage([lead], shown, None, 0, keep=1) for lead in leads)
        return next(filter(None, ends), [])

    def from_near(self, near: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens together, from the sets that come near to a few of them."""
        return self.stage(near, self.distinct(visible, 0, None), None, 0)

    def at_once(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens together, with at least one bug that lets a token see later ones.

        Then no token can be looked at before the others. Where no bug does, as in a norm, one token
        alone may be explained by chance: its error is a factor, and many sets give that.
        """
        shown = self.distinct(visible, 0, None)
        return self.stage(self.acausal(known, shown) or known, shown, None, 0)
