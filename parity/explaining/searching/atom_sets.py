"""Sets of bugs: which are the smallest, which differ, which a search starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, Protocol, TypeVar

from lockstep.parity.explaining.searching.hypothesis import Atom

Atoms = frozenset[Atom]
One = TypeVar("One")

ALIKE = 2  # sets of nearly the same error that a search goes on with
CHOICES = 12  # of variants of known bugs, each of which a search starts from


def smallest(found: Iterable[Atoms]) -> list[Atoms]:
    """Return the sets of fewest bugs, each once."""
    every = dict.fromkeys(found)
    least = min(map(count, every), default=0)
    return [atoms for atoms in every if count(atoms) == least]


def distinct(errors: Mapping[Atoms, float], most: int, by_chance: float = 1.0) -> list[Atoms]:
    """Return the sets of least error, of those that are nearly alike in it only the smallest few.

    What a bug more leaves as it was, it does not explain. Nor does one that leaves as much of it as
    the best of many wrong ones does `by_chance`.
    """
    alike: Counter[str] = Counter()
    nearly = {atoms: f"{error:.3g}" for atoms, error in errors.items()}
    found = []

    def rank(atoms: Atoms) -> tuple[float, int, float]:
        return float(nearly[atoms]) / by_chance ** len(atoms), len(atoms), errors[atoms]

    for atoms in sorted(errors, key=rank):
        alike[key := nearly[atoms]] += 1
        if alike[key] <= ALIKE:
            found.append(atoms)
        if len(found) == most:
            break
    return found


def picked(group: Sequence[Atom]) -> list[Atom]:
    """Return of atoms in order that of fewest calls and that of most, in each of its variants."""
    ends = group[0], group[-1]
    kept = {(one.hypothesis.id, one.hypothesis.variant, one.calls): one for one in ends}
    for other in group:
        key = other.hypothesis.id, other.hypothesis.variant, other.calls
        if any((one.hypothesis.id, one.calls) == (key[0], key[2]) for one in ends):
            kept.setdefault(key, other)
    return list(kept.values())


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


def in_rows(atoms: Atoms, last: int | None) -> int | None:
    """Return how many tokens a set is computed for: of one bug all, since they are asked for too.

    So it is with one that lets a token see later ones.
    """
    return None if len(atoms) < 2 or acausal(atoms) else last


def acausal(atoms: Atoms) -> bool:
    """Say whether some bug lets a token see later ones."""
    return any(atom.hypothesis.fault.acausal for atom in atoms)


class Measuring(Protocol):
    """A search that measures sets, and counts how many."""

    count: int

    @property
    def errors(self) -> Mapping[Atoms, Any]: ...

    @property
    def spent(self) -> bool: ...


def unmeasured(search: Measuring, some: Iterable[Atoms], size: int) -> Iterator[list[Atoms]]:
    """Yield the sets that were not measured yet, so many at a time, until the search is spent."""
    for part in in_parts((atoms for atoms in some if atoms not in search.errors), size):
        if search.spent:
            return
        search.count += len(part)
        yield part


def in_parts(some: Iterable[One], size: int) -> Iterator[list[One]]:
    """Yield some sets or bugs, so many at a time."""
    waiting = iter(some)
    while part := list(islice(waiting, size)):
        yield part
