"""Find the smallest sets of bugs that explain one piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from lockstep.parity.explain.hypothesis import Atom, rewritten
from lockstep.parity.explain.trial import FAR, Fit, Trial
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judge import Judgement

Atoms = frozenset[Atom]

VISIBLE = 0.3  # noises that a bug must move a value by, to be thought of
PROMISING = 40.0  # noises that the quick measure may leave, for the full one to be asked
BEAM = 10
PAIRS = 60  # candidates of which every pair is tried
DEEPEST = 7  # bugs at once inside of one piece
BUDGET = 4000  # computations of a value, until a piece is left unexplained


@dataclass(frozen=True)
class Explanation:
    """A set of bugs that leaves nothing of a piece's error but noise."""

    atoms: Atoms
    judgement: Judgement


@dataclass
class Search:
    """The search over one piece. `atoms` are all that touch it."""

    trial: Trial
    piece: Piece
    atoms: Sequence[Atom]
    effects: dict[tuple[Atom, int | None, int], float] = field(default_factory=dict)
    fits: dict[tuple[Atoms, int | None, int], Fit] = field(default_factory=dict)
    judged: dict[Atoms, Judgement | None] = field(default_factory=dict)
    start: int = 0

    def explanations(self, known: Iterable[Atom]) -> list[Explanation]:
        """Return all smallest sets that explain the piece; none if nothing found does.

        First what other pieces are known to suffer from, then single bugs, then sets.
        """
        self.start = self.trial.count
        visible = [atom for atom in self.atoms if self.visible(atom)]
        for found in (self.among(known), self.singles(visible), self.sets(visible, known)):
            if found:
                return self.with_siblings(found, visible)
        return []

    def visible(self, atom: Atom) -> bool:
        return self.effect(atom, None, 0) > VISIBLE

    def effect(self, atom: Atom, rows: int | None, skip: int) -> float:
        key = atom, rows, skip
        if key not in self.effects:
            calls = rewritten([atom], self.trial.graph)
            target = self.piece.target
            self.effects[key] = self.trial.effect(target, calls, rows, skip) if calls else 0.0
        return self.effects[key]

    def fit(self, atoms: Atoms, rows: int | None = None, skip: int = 0) -> Fit:
        key = atoms, rows, skip
        if key not in self.fits:
            calls = rewritten(atoms, self.trial.graph)
            target = self.piece.target
            self.fits[key] = (
                Fit(FAR, FAR) if calls is None else self.trial.fit(target, calls, rows, skip)
            )
        return self.fits[key]

    def explains(self, atoms: Atoms) -> bool:
        """Say whether nothing but noise is left: roughly first, then as `diff` judges."""
        if self.fit(atoms).raw > PROMISING:
            return False
        if atoms not in self.judged:
            calls = rewritten(atoms, self.trial.graph)
            self.judged[atoms] = self.trial.judge(self.piece.target, calls)
        judgement = self.judged[atoms]
        return judgement is not None and judgement.passed

    def among(self, known: Iterable[Atom]) -> list[Atoms]:
        """Return the smallest sets of known bugs that explain the piece."""
        here = [atom for atom in known if atom in self.atoms and self.visible(atom)]
        for size in range(1, min(len(here), DEEPEST) + 1):
            found = [frozenset(some) for some in combinations(here, size)
                     if not self.spent and self.explains(frozenset(some))]  # fmt: skip
            if found:
                return found
        return []

    def singles(self, visible: Sequence[Atom]) -> list[Atoms]:
        return [frozenset([atom]) for atom in visible if self.explains(frozenset([atom]))]

    def sets(self, visible: Sequence[Atom], known: Iterable[Atom]) -> list[Atoms]:
        """Explain the first token, then those within the window, then the rest.

        What a token cannot show it need not explain: alone, it shows no rope, no mask, no scale of
        attention. Each stage goes on from the sets that explained the one before.
        """
        here = frozenset(atom for atom in known if atom in visible)
        solutions, before = [frozenset[Atom]()] + [here] * bool(here), 0
        for rows in self.stages():
            some = [
                atom for atom in visible
                if self.effect(atom, rows, before) > VISIBLE
                and (before == 0 or self.effect(atom, before, 0) < VISIBLE)
            ]  # fmt: skip
            solutions = self.stage(solutions, some, rows, before)
            if not solutions:
                return []
            before = rows or 0
        found = [atoms for atoms in solutions if atoms and self.explains(atoms)]
        smallest = [self.needed(atoms) for atoms in found]
        least = min(map(len, smallest), default=0)
        return list({atoms: None for atoms in smallest if len(atoms) == least})

    def stages(self) -> list[int | None]:
        """Return how many tokens each stage looks at: one, a window's worth, all."""
        axis = self.trial.graph.token_axes[self.piece.target][0]
        total = self.trial.graph.shapes[self.piece.target][axis]
        windows = {
            call.options["window"] for call in self.trial.graph.calls
            if call.op == "causal_mask" and call.options["window"] is not None
        }  # fmt: skip
        return [rows for rows in sorted({1, *windows}) if rows < total] + [None]

    def stage(
        self, starts: list[Atoms], candidates: Sequence[Atom], rows: int | None, skip: int
    ) -> list[Atoms]:
        """Return the smallest sets, on top of earlier ones, that explain the tokens of a stage."""
        beam = starts
        for depth in range(DEEPEST):
            found = [atoms for atoms in beam if self.fit(atoms, rows, skip).raw <= self.close(skip)]
            if found:
                return found[:BEAM]
            wide = depth == 0 and len(candidates) <= PAIRS
            beam = self.grown(beam, candidates, rows, skip, keep=len(candidates) if wide else BEAM)
            if not beam or self.spent:
                return []
        return []

    def close(self, skip: int) -> float:
        """Return what the quick measure may leave on a few tokens, whose noise is uncertain."""
        return 3 * self.trial.limit

    def grown(
        self, beam: list[Atoms], candidates: Sequence[Atom], rows: int | None, skip: int, keep: int
    ) -> list[Atoms]:
        """Add each candidate to each set; keep the best by either measure."""
        larger = {atoms | {atom} for atoms in beam for atom in candidates if atom not in atoms}
        fits = {}
        for atoms in larger:
            if self.spent:
                break
            fits[atoms] = self.fit(atoms, rows, skip)
        possible = [atoms for atoms, fit in fits.items() if fit.raw < FAR]
        by_raw = sorted(possible, key=lambda atoms: fits[atoms].raw)[:keep]
        by_gain = sorted(possible, key=lambda atoms: fits[atoms].scaled)[:keep]
        return list(dict.fromkeys((*by_raw, *by_gain)))

    def needed(self, atoms: Atoms) -> Atoms:
        """Leave out what can be left out."""
        for atom in sorted(atoms, key=lambda atom: self.effect(atom, None, 0)):
            if len(atoms) > 1 and self.explains(atoms - {atom}):
                atoms -= {atom}
        return atoms

    def with_siblings(self, found: list[Atoms], visible: Sequence[Atom]) -> list[Explanation]:
        """Return the sets, and those in which one bug is exchanged for another that does as well."""
        every = dict.fromkeys(found)
        for atoms in found:
            for atom in atoms:
                for other in visible:
                    if other not in atoms and not self.spent:
                        sibling = atoms - {atom} | {other}
                        if self.explains(sibling):
                            every.setdefault(sibling)
        judged = {atoms: self.judged[atoms] for atoms in every}
        return [Explanation(atoms, one) for atoms, one in judged.items() if one is not None]

    @property
    def spent(self) -> bool:
        return self.trial.count - self.start > BUDGET
