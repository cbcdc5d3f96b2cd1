"""The first token is explained, then those within the window, then the rest.

What a token cannot show it need not explain: alone, it shows no rope, no mask, no scale of
attention. Each stage goes on from the sets that explained the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.parity.explaining.searching.atom_sets import Atoms, acausal
from lockstep.parity.explaining.searching.growing import BEAM, Growing
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.explaining.searching.last_step import NEAR
from lockstep.parity.explaining.searching.seen import VISIBLE
from lockstep.parity.explaining.searching.segments import Segments
from lockstep.parity.explaining.searching.stages import stages


@dataclass
class ByStages(Growing):
    """The search that explains few tokens before all."""

    def staged(self, solutions: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain the tokens in stages; if that fails, all of them without the first."""
        found = self.in_stages(solutions, visible)
        whole = [atoms for atoms in solutions if atoms and (self.routed or acausal(atoms))]
        if found or self.patient or not whole:
            return found
        return self.without_first(whole, visible)

    def in_stages(self, solutions: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        before = 0
        for rows in stages(self.piece, self.trial.graph):
            shown = [atom for atom in visible if self.shows(atom, before, rows)]
            found = self.first(solutions, shown) if rows == 1 else []
            found = found or self.more_tokens(solutions, shown, rows, before)
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
        found = self.by_one_more(solutions, shown)
        if found or self.cleared is not None or solutions != [frozenset()]:
            return found
        with self.budget.uncounted():  # its work has a limit of its own
            return Segments(self.trial, self.piece, shown, self.effort).sets(self.close)[:BEAM]

    def by_one_more(self, solutions: list[Atoms], shown: Sequence[Atom]) -> list[Atoms]:
        """Explain the first token by one bug more."""
        return self.stage(solutions, self.distinct(shown, 0, 1), 1, 0, deepest=1)

    def more_tokens(
        self, solutions: list[Atoms], shown: Sequence[Atom], rows: int | None, before: int
    ) -> list[Atoms]:
        """Explain more tokens: by what those before did not show; else, by whatever it is."""
        new = [atom for atom in shown if not before or self.effect(atom, 0, before) < VISIBLE]
        with self.budget.of(self.budget.limit // 2):
            found = self.stage(solutions, self.distinct(new, before, rows), rows, before)
        return found or self.stage(solutions, self.distinct(shown, before, rows), rows, before)

    def without_first(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens together, by what is known and a few bugs more.

        At the first token a rounding may have turned a router: then no right set explains it. If a
        bug lets it see later ones, it shows what others do. That has a budget of its own, as large
        as that of the stages, which are often used up.
        """
        self.budget.begin()
        nearest = sorted(known, key=lambda atoms: self.fit(atoms)[0])[:NEAR]
        return self.stage(nearest, self.distinct(visible, 0, None), None, 0, deepest=2)
