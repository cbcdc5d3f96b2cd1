"""Sets of bugs that grow by one bug at a time, of which the best are gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.parity.explaining.searching.atom_sets import Atoms, distinct, in_parts, in_rows
from lockstep.parity.explaining.searching.budget import Budget
from lockstep.parity.explaining.searching.by_few_tokens import DEEPEST, ByFewTokens
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.explaining.searching.last_step import last_steps
from lockstep.parity.explaining.searching.look import FAR
from lockstep.parity.explaining.searching.pace import Pace
from lockstep.parity.explaining.searching.price import BUDGET
from lockstep.parity.explaining.searching.seen import PAIRS
from lockstep.parity.explaining.searching.settling import COARSE

SMALL = 0.03  # of the error that is left: less is not tried yet
BEAM = 8
TOGETHER = 64  # sets that are looked at before the budget is asked again


@dataclass
class Growing(ByFewTokens):
    """The search that adds bug after bug, within its budget."""

    work: int = BUDGET  # of a search that has all of it; this one has as much as its effort
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget(self.trial, round(self.effort * self.work))

    @property
    def spent(self) -> bool:
        return super().spent or self.budget.spent

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

    def accepts(self, atoms: Atoms, skip: int, rows: int | None) -> bool:
        """Say whether a stage may end with a set; the last one as the whole piece is judged."""
        if rows is None:
            return bool(atoms) and self.explains(atoms)
        return self.fit(atoms, skip, rows)[0] <= self.close * (COARSE if self.coarse(atoms) else 1)

    def finished(self, beam: list[Atoms], candidates: Sequence[Atom]) -> list[Atoms]:
        """Return the sets that explain the piece, of those that all but do, changed in one bug."""
        changed = last_steps(self, beam, candidates)
        return [atoms for atoms in changed if not self.spent and self.settles(atoms)]

    def grown(
        self, beam: list[Atoms], candidates: Sequence[Atom], rows: int | None, skip: int, keep: int
    ) -> list[Atoms]:
        """Add each candidate to each set; keep the best by each measure."""
        fits = {}
        for some in in_parts(self.larger(beam, candidates, rows, skip), TOGETHER):
            if self.spent:
                break
            for last in dict.fromkeys((None, rows)):
                self.look_at((one for one in some if in_rows(one, rows) == last), last)
            fits |= {atoms: self.fit(atoms, skip, rows) for atoms in some}
        # Of bugs that nothing shows but others beside them, one alone may move nothing.
        had = set() if self.patient else {self.fit(atoms, skip, rows) for atoms in beam}
        possible = [atoms for atoms, fit in fits.items() if fit[0] < FAR and fit not in had]
        best: dict[Atoms, None] = {}
        for measure in range(3):
            errors = {atoms: fits[atoms][measure] for atoms in possible}
            best |= dict.fromkeys(distinct(errors, keep))
        return list(best)

    def larger(
        self, beam: list[Atoms], candidates: Sequence[Atom], rows: int | None, skip: int
    ) -> dict[Atoms, None]:
        """Return sets with one bug more; what moves a value by far less than is still to be
        explained can wait.
        """
        return {
            atoms | self.alone(atom): None
            for atoms in beam
            for atom in self.large(candidates, self.small(atoms, rows, skip), skip, rows)
            if atom not in atoms
        }

    def small(self, atoms: Atoms, rows: int | None, skip: int) -> float:
        """Return what a bug moves alone that can wait. A coarse one beside it makes it larger: what
        moves a score a little turns it to the next value of a grid.
        """
        left = SMALL * min(self.fit(atoms, skip, rows))
        return left / COARSE if self.coarse(atoms) else left

    def nearer(self, rest: Atoms, atom: Atom, others: Sequence[Atom]) -> list[Atom]:
        with self.budget.uncounted():  # a look at each bug, however many
            return super().nearer(rest, atom, others)
