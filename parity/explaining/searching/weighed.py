"""Whether each bug of a set has a reason of its own, beside the choices that were found for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.parity.explaining.routing.steering import ByChoices
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.earned import LESS, parts
from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.searching.seen import Seen
from lockstep.parity.judging.judge import Judgement


@dataclass
class Weighed(Seen):
    """Sets of bugs in one piece, weighed against their parts. `judged` has what came of them."""

    judged: dict[Atoms, Judgement | None] = field(default_factory=dict)
    chosen: dict[tuple[Atoms, Atoms], bool] = field(default_factory=dict)

    def earned(self, atoms: Atoms) -> bool:
        """Say whether each bug brings the port nearer, with the choices of routers held too."""
        if not super().earned(atoms):
            return False
        return not any(self.owed_to_choices(atoms, rest) for rest in parts(atoms))

    def owed_to_choices(self, atoms: Atoms, rest: Atoms) -> bool:
        """Say whether the choices that were found for a set do nearly as well without some of it.

        Each bug that is tried has all legal choices looked through: one of many is lucky. So what
        it leaves is weighed against what the rest leaves with the same choices, if it may make
        them. If that is right arithmetic, and passes, nothing is wrong with the piece.
        """
        judged = self.judged.get(atoms)
        if not isinstance(judged, ByChoices) or not judged.passed:
            return False
        if (atoms, rest) not in self.chosen:
            calls = rewritten(rest, self.trial.graph)  # None: these bugs exclude each other
            known = calls is not None
            other = self.trial.judge_as_chosen(self.piece, calls, judged) if known else None
            if other is not None and other.passed:
                self.judged[rest] = other
            self.chosen[atoms, rest] = other is not None and (
                other.passed or judged.own_error >= LESS * other.own_error
            )
        return self.chosen[atoms, rest]

    @property
    def cleared(self) -> Judgement | None:
        """The judgement of the piece, if it turned out to be right."""
        right = self.judged.get(frozenset())
        return right if right is not None and right.passed else None
