"""Find the smallest sets of bugs that explain one piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, product

from lockstep.parity.explaining.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.explaining.look import FAR, Look
from lockstep.parity.explaining.trial import Trial
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judge import Judgement

Atoms = frozenset[Atom]

VISIBLE = 0.3  # noises that a bug must move a value by, to be thought of
PROMISING = 40.0  # noises that the quick measure may leave, for the full one to be asked
BEGUN = 8.0  # of these noises, for one of the first tokens, where routers may turn others
COARSE = 100.0  # times as many, where a coarse grid turns single values
SMALL = 0.03  # of the error that is left: less is not tried yet
ALIKE = 2  # sets of nearly the same error that a search goes on with
BEAM = 8
PAIRS = 60  # candidates of which every pair is tried
CHOICES = 12  # of variants of known bugs, each of which a search starts from
MOST_KNOWN = 10  # known bugs of which every subset is tried
DEEPEST = 7  # bugs at once inside of one piece
BUDGET = 15000  # computations of a value, until a piece is left unexplained


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
    looks: dict[tuple[Atoms, int | None], Look | None] = field(default_factory=dict)
    judged: dict[Atoms, Judgement | None] = field(default_factory=dict)
    start: int = 0

    def explanations(
        self, known: Sequence[Atom], settled: Collection[Hypothesis], *, deep: bool
    ) -> list[Explanation]:
        """Return all smallest sets that explain the piece; none if nothing found does.

        First what other pieces are known to suffer from, then single bugs, then, if `deep`, sets.
        What is `settled` needs no more comparing with what might do as well.
        """
        self.start = self.trial.count
        found = self.among(known)
        if found and all(atom.hypothesis in settled for atom in found[0]):
            return self.told(found)
        visible = [atom for atom in self.atoms if self.effect(atom, 0, None) > VISIBLE]
        found = found or self.singles(visible) or (self.sets(visible, known) if deep else [])
        return self.told(self.with_siblings(found, visible))

    def told(self, found: Iterable[Atoms]) -> list[Explanation]:
        judged = {atoms: self.judged[atoms] for atoms in found}
        return [Explanation(atoms, one) for atoms, one in judged.items() if one is not None]

    def look(self, atoms: Atoms, rows: int | None) -> Look | None:
        """Look at a set of bugs on the first `rows` tokens; None if they contradict each other."""
        key = atoms, rows
        if key not in self.looks:
            calls = rewritten(atoms, self.trial.graph)
            self.looks[key] = None if calls is None else self.trial.look(self.piece, calls, rows)
        return self.looks[key]

    def effect(self, atom: Atom, first: int, last: int | None) -> float:
        """Return how far a bug alone moves a stretch of tokens, over the noise."""
        found = self.look(frozenset([atom]), None)
        return found.effect(first, last) if found else 0.0

    def fit(self, atoms: Atoms, first: int = 0, last: int | None = None) -> tuple[float, ...]:
        """Return how far the port is from a set of bugs: as it is, after a factor, in a mixture."""
        acausal = any(atom.hypothesis.fault.acausal for atom in atoms)
        found = self.look(atoms, None if len(atoms) < 2 or acausal else last)
        if found is None:
            return (FAR,) * 3
        found = replace(found, noise=self.trial.relative_noise(self.piece, last))
        return found.raw(first, last), found.scaled(first, last), found.mixed(first, last)

    def explains(self, atoms: Atoms) -> bool:
        """Say whether nothing but noise is left: roughly first, then as `diff` judges."""
        coarse = self.coarse(atoms)
        if not self.promising(atoms, PROMISING * (COARSE if coarse else 1)):
            return False
        if atoms not in self.judged:
            calls = rewritten(atoms, self.trial.graph)
            self.judged[atoms] = self.trial.judge(self.piece, calls, coarse=coarse)
        judgement = self.judged[atoms]
        return judgement is not None and judgement.passed

    def promising(self, atoms: Atoms, most: float) -> bool:
        """Say whether a quick measure leaves so little; if tokens may be off, not the first."""
        found = self.look(atoms, None)
        if found is None or not found.raw(0, None) <= most:
            return False
        return found.careful or found.beginning() <= BEGUN

    def among(self, known: Sequence[Atom]) -> list[Atoms]:
        """Return the smallest sets of known bugs that explain the piece."""
        visible = [atom for atom in known if self.effect(atom, 0, None) > VISIBLE]
        found = self.singles(visible)
        if found:
            return found
        here = sorted(visible, key=lambda atom: -len(atom.calls))[:MOST_KNOWN]
        for size in range(2, min(len(here), DEEPEST) + 1):
            found = [
                frozenset(some) for some in combinations(here, size)
                if count(some) == size and not self.spent and self.explains(frozenset(some))
            ]  # fmt: skip
            if found:
                return found
        return []

    def singles(self, visible: Sequence[Atom]) -> list[Atoms]:
        return [frozenset([atom]) for atom in visible if self.explains(frozenset([atom]))]

    def sets(self, visible: Sequence[Atom], known: Sequence[Atom]) -> list[Atoms]:
        """Explain the piece on top of what is known to be wrong elsewhere, else from nothing."""
        here = widest(atom for atom in known if atom in visible)
        for attempt in (self.staged, self.at_once):
            for starts in ([here] if here else []) + [[frozenset[Atom]()]]:
                self.start = self.trial.count
                found = attempt(starts, visible)
                if found:
                    smallest = [self.needed(atoms) for atoms in found]
                    least = min(map(count, smallest))
                    return list({atoms: None for atoms in smallest if count(atoms) == least})
        return []

    def staged(self, solutions: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain the first token, then those within the window, then the rest.

        What a token cannot show it need not explain: alone, it shows no rope, no mask, no scale of
        attention. Each stage goes on from the sets that explained the one before.
        """
        before = 0
        for rows in self.stages():
            shown = [atom for atom in visible if self.effect(atom, before, rows) > VISIBLE]
            new = [atom for atom in shown if not before or self.effect(atom, 0, before) < VISIBLE]
            for some in (new, shown):  # what the tokens before did not show; then, whatever it is
                found = self.stage(solutions, self.distinct(some, before, rows), rows, before)
                if found:
                    break
            if not found:
                return []
            solutions, before = found, rows or 0
        return solutions

    def at_once(self, known: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Explain all tokens together, with at least one bug that lets a token see later ones.

        Then no token can be looked at before the others.
        """
        shown = self.distinct(visible, 0, None)
        acausal = [frozenset([atom]) for atom in shown if atom.hypothesis.fault.acausal]
        starts = [atoms | some for atoms in known for some in acausal]
        return self.stage(starts, shown, None, 0)

    def distinct(self, atoms: Sequence[Atom], first: int, last: int | None) -> list[Atom]:
        """Return two of those that do the same to a stretch of tokens: of fewest and of most calls.

        Alone they do the same; beside another bug, which brings what was unseen into sight, not.
        """
        fewest: dict[tuple[float, ...], Atom] = {}
        most: dict[tuple[float, ...], Atom] = {}
        for atom in sorted(atoms, key=lambda atom: len(atom.calls)):
            look = self.look(frozenset([atom]), None)
            if look is not None:
                key = look.fingerprint(first, last)
                fewest.setdefault(key, atom)
                most[key] = atom
        return [*fewest.values(), *(atom for key, atom in most.items() if fewest[key] is not atom)]

    def stages(self) -> list[int | None]:
        """Return how many tokens each stage looks at: one, as many as no window cuts off, those of
        the prompt, all.
        """
        axis = self.trial.graph.token_axes[self.piece.target][0]
        total = self.trial.graph.shapes[self.piece.target][axis]
        windows = {
            max(call.options["window"] - 1, 1) for call in self.trial.graph.calls
            if call.op == "causal_mask" and call.options["window"] is not None
        }  # fmt: skip
        prompt = self.trial.graph.steps[:1]
        return [rows for rows in sorted({1, *windows, *prompt}) if rows < total] + [None]

    def stage(
        self, starts: list[Atoms], candidates: Sequence[Atom], rows: int | None, skip: int
    ) -> list[Atoms]:
        """Return the smallest sets, on top of earlier ones, that explain the tokens of a stage."""
        beam = starts
        for depth in range(DEEPEST + 1):
            found = [atoms for atoms in beam if self.accepts(atoms, skip, rows)]
            if found:
                return found[:BEAM]
            if not beam or self.spent:
                break
            wide = depth == 0 and len(candidates) <= PAIRS
            beam = self.grown(beam, candidates, rows, skip, keep=len(candidates) if wide else BEAM)
        return []

    def accepts(self, atoms: Atoms, skip: int, rows: int | None) -> bool:
        """Say whether a stage may end with a set; the last one as the whole piece is judged."""
        if rows is None:
            return bool(atoms) and self.explains(atoms)
        return self.fit(atoms, skip, rows)[0] <= self.close * (COARSE if self.coarse(atoms) else 1)

    def coarse(self, atoms: Atoms) -> bool:
        """Say whether a bug among these rounds coarser than the port, float32, computes."""
        wide = self.trial.dtype.itemsize > 2
        return wide and any(atom.hypothesis.fault.coarse for atom in atoms)

    @property
    def close(self) -> float:
        """Return what the quick measure may leave on a few tokens, whose noise is uncertain."""
        return 3 * self.trial.limit

    def grown(
        self, beam: list[Atoms], candidates: Sequence[Atom], rows: int | None, skip: int, keep: int
    ) -> list[Atoms]:
        """Add each candidate to each set; keep the best by each measure.

        What moves a value by far less than is still to be explained can wait.
        """
        larger = {
            atoms | {atom}: None
            for atoms in beam
            for atom in self.large(candidates, SMALL * min(self.fit(atoms, skip, rows)), skip, rows)
            if atom not in atoms
        }
        fits = {}
        for atoms in larger:
            if self.spent:
                break
            fits[atoms] = self.fit(atoms, skip, rows)
        possible = [atoms for atoms, fit in fits.items() if fit[0] < FAR]
        best: dict[Atoms, None] = {}
        for measure in range(3):
            errors = {atoms: fits[atoms][measure] for atoms in possible}
            best |= dict.fromkeys(distinct(errors, keep))
        return list(best)

    def large(
        self, candidates: Sequence[Atom], least: float, skip: int, rows: int | None
    ) -> list[Atom]:
        return [atom for atom in candidates if self.effect(atom, skip, rows) >= least]

    def needed(self, atoms: Atoms) -> Atoms:
        """Leave out what can be left out, alone or with another bug that undoes it."""
        for size in (1, 2):
            ordered = sorted(atoms, key=lambda atom: self.effect(atom, 0, None))
            for some in combinations(ordered, size):
                if atoms.issuperset(some) and len(atoms) > size and self.explains(atoms - {*some}):
                    atoms -= {*some}
        return atoms

    def with_siblings(self, found: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
        """Return the sets, and those that do as well with one bug exchanged for another.

        In a larger set only what does the same alone is exchanged: that is what cannot be told.
        """
        every = dict.fromkeys(found)
        for atoms in found[:BEAM]:
            for atom in atoms:
                for other in visible if len(atoms) == 1 else self.alike(atom, visible):
                    if other not in atoms and not self.spent:
                        sibling = atoms - {atom} | {other}
                        if self.explains(sibling):
                            every.setdefault(sibling)
        return list(every)

    def alike(self, atom: Atom, others: Sequence[Atom]) -> list[Atom]:
        """Return the bugs that alone do what another does, as far as sums of squares can tell."""
        one = self.look(frozenset([atom]), None)
        looks = ((other, self.look(frozenset([other]), None)) for other in others)
        return [other for other, look in looks if one and look and look.resembles(one)]

    @property
    def spent(self) -> bool:
        return self.trial.count - self.start > BUDGET


def distinct(errors: Mapping[Atoms, float], count: int) -> list[Atoms]:
    """Return the sets of least error, of those that are nearly alike in it only the first few."""
    alike: Counter[str] = Counter()
    found = []
    for atoms in sorted(errors, key=errors.__getitem__):
        alike[key := f"{errors[atoms]:.3g}"] += 1
        if alike[key] <= ALIKE:
            found.append(atoms)
        if len(found) == count:
            break
    return found


def widest(atoms: Iterable[Atom]) -> list[Atoms]:
    """Return all bugs together, each in most calls: a set for each choice of their variants."""
    found: dict[str, dict[str, Atom]] = {}
    for atom in sorted(atoms, key=lambda atom: -len(atom.calls)):
        found.setdefault(atom.hypothesis.id, {}).setdefault(atom.hypothesis.variant, atom)
    choices = islice(product(*(variants.values() for variants in found.values())), CHOICES)
    return [frozenset(choice) for choice in choices if choice]


def count(atoms: Iterable[Atom]) -> int:
    """Return how many bugs a set is: one that acts at several places is one."""
    return len({atom.hypothesis for atom in atoms})
