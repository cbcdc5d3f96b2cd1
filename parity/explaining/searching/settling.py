"""Whether a set of bugs explains a piece, and how few of them do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import in_order, rewritten
from lockstep.parity.explaining.searching.merged import merged
from lockstep.parity.explaining.searching.weighed import Weighed

PROMISING = 40.0  # noises that the quick measure may leave, for the full one to be asked
COARSE = 100.0  # times as many, where a coarse grid turns single values


@dataclass
class Settling(Weighed):
    """What is seen of a piece, and what `diff` would say of it."""

    @property
    def spent(self) -> bool:
        """Whether no more is to be looked at: the piece is right, or a search used its work up."""
        return self.cleared is not None

    def explains(self, atoms: Atoms, *, patient: bool = False) -> bool:
        """Say whether nothing but noise is left: roughly first, then as `diff` judges.

        A bug may make more noise than the right computation has, as where it divides by a small
        difference. Where few are asked, be `patient`.
        """
        if not self.may_explain(atoms, patient=patient):
            return False
        if atoms not in self.judged:
            calls = rewritten(atoms, self.trial.graph)
            self.judged[atoms] = self.trial.judge(self.piece, calls, coarse=self.coarse(atoms))
        judgement = self.judged[atoms]
        return judgement is not None and judgement.passed

    def may_explain(self, atoms: Atoms, *, patient: bool = False) -> bool:
        """Say whether the quick measure leaves little enough for the full one to be asked."""
        if self.cleared is not None:
            return False
        return self.promising(atoms, self.may_leave(atoms, patient=patient))

    def may_leave(self, atoms: Atoms, *, patient: bool = False) -> float:
        """Return how many noises the quick measure may leave, for the full one to be asked."""
        return PROMISING * (COARSE if patient or self.coarse(atoms) else 1)

    def settles(self, atoms: Atoms, *, patient: bool = False) -> bool:
        """Say whether nothing but noise is left, and each of the bugs is there for a reason.

        Behind a router it takes long to say the first, and the second rules most sets out. Of one
        bug the second is known from looks that were taken before.
        """
        new = (self.routed or len(atoms) == 1) and atoms not in self.judged
        if new and not (self.may_explain(atoms, patient=patient) and self.earned(atoms)):
            return False
        return self.explains(atoms, patient=patient) and self.earned(atoms)

    def needed(self, atoms: Atoms) -> Atoms:
        """Leave out what can be left out, alone or with another bug that undoes it."""
        for size in (1, 2):
            ordered = sorted(in_order(atoms), key=lambda atom: self.effect(atom, 0, None))
            for some in combinations(ordered, size):
                if rest := atoms - {*some}:
                    self.owed_to_choices(atoms, rest)
                    atoms = rest if self.explains(rest, patient=True) else atoms
        return atoms

    def fewest(self, atoms: Atoms) -> Atoms:
        """Leave out what can be left out, and put one bug in the place of several, if that does."""
        atoms = self.needed(atoms)
        fewer = [*merged(atoms, self.atoms)]
        self.look_at(fewer, None)
        return next((self.fewest(some) for some in fewer if self.settles(some)), atoms)
