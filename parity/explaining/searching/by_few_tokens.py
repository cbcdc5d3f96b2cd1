"""What a look at a few tokens says of the sets of bugs of one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.both_ends import BothEnds
from lockstep.parity.explaining.searching.hypothesis import Atom, in_order
from lockstep.parity.explaining.searching.settling import Settling
from lockstep.parity.explaining.searching.wide import Wide

SMALLER = 0.0075  # of the error that is left: beside others a bug may show more
DEEPEST = 7  # bugs at once inside of one piece
VARIED = 4  # sets that are tried in other variants


@dataclass
class ByFewTokens(Settling):
    """The search over a few tokens of one piece, which takes seconds."""

    effort: float = 1.0  # of the usual work: less where other pieces were searched in vain
    patient: bool = False  # with bugs that nothing shows but others beside them
    looked: Wide | None = None  # the last look at a few tokens, which may be gone on with

    def sure(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Return the sets that leave nothing of a few tokens but noise, and the same in other
        variants, which other tokens may tell.
        """
        wide, begun = self.wide(known, visible)
        found = wide.sure(begun, DEEPEST - 1) if wide.possible else []
        return [*dict.fromkeys((*found, *in_other_variants(found[:VARIED], visible)))]

    def near(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Return the sets that come near to a few tokens; none if that is too much work.

        Each in the variants that are nearest to all: one token may tell them, which hides the rest.
        """
        wide, begun = self.wide(known, visible)
        if not wide.possible:
            return []
        if not self.patient:  # every set of known bugs that show was tried: `among`
            both = BothEnds.of(self.trial, self.piece, wide.candidates, known, self.effort)
            begun += both.sets()
        near = wide.nearest(begun, DEEPEST - 1)
        told = (self.in_best_variants(atoms, visible) for atoms in near[:VARIED])
        return [*dict.fromkeys((*told, *near[VARIED:]))]

    def in_best_variants(self, atoms: Atoms, visible: Sequence[Atom]) -> Atoms:
        """Return the nearest to all tokens of a set and those with another variant of one bug."""
        every = [atoms, *in_other_variants([atoms], visible)]
        self.look_at(every, None)
        return min(every, key=lambda one: self.fit(one)[0])

    def leads(self) -> list[Atoms]:
        """Return the few sets of the last look from which a way may lead on."""
        return [] if self.looked is None or self.patient else self.looked.leads()

    def wide(self, known: list[Atoms], visible: Sequence[Atom]) -> tuple[Wide, list[Atoms]]:
        """Return the search over a few tokens, and the sets that it begins with."""
        shown = self.distinct(visible, 0, None)
        least = SMALLER * min(self.fit(frozenset()))
        wide = self.wide_of(self.large(shown, least, 0, None))
        return wide, [*known, *self.acausal(known, shown)]

    def wide_of(self, candidates: list[Atom]) -> Wide:
        """Return the search for sets of these bugs: the last one, if it was for the same."""
        if self.looked is None or self.looked.candidates != candidates:
            self.looked = Wide.of(self.trial, self.piece, candidates, self.effort)
        return self.looked

    def large(
        self, candidates: Sequence[Atom], least: float, skip: int, rows: int | None
    ) -> list[Atom]:
        return [
            atom for atom in candidates if self.patient or self.effect(atom, skip, rows) >= least
        ]


def in_other_variants(some: Sequence[Atoms], candidates: Sequence[Atom]) -> Iterator[Atoms]:
    """Yield sets with another variant of one of their bugs, in the same calls."""
    for atoms in some:
        for atom in in_order(atoms):
            bug = atom.hypothesis
            for other in candidates:
                same = other.hypothesis.id == bug.id and other.calls == atom.calls
                if same and other.hypothesis.variant != bug.variant:
                    yield atoms - {atom} | {other}
