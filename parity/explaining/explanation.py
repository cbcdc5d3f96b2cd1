"""What explains a piece."""

from dataclasses import dataclass

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Hypothesis
from lockstep.parity.judging.judge import Judgement


@dataclass(frozen=True)
class Explanation:
    """A set of bugs that leaves nothing of a piece's error but noise.

    `complete` says whether all that may do as well in place of one of them was looked for.
    """

    atoms: Atoms
    judgement: Judgement
    complete: bool = False

    @property
    def bugs(self) -> frozenset[Hypothesis]:
        return frozenset(atom.hypothesis for atom in self.atoms)
