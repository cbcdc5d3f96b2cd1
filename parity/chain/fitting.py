"""Find the mistakes that give exactly what a port has: one, else two together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.checkpoint.errors import InputError

BUILT = ("file", "backend")  # steps whose edits make another tokenizer
MOST_TRIED = 1500  # pairs; each is a text encoded, or all steps replayed


class Candidate(NamedTuple):
    """A form of a mistake."""

    mistake: Mistake
    variant: str
    edit: Edit


@dataclass(frozen=True)
class Fit:
    """The mistakes that explain everything, what else would in the place of each, and the best of
    what does not, with the share that it leaves."""

    chosen: tuple[Candidate, ...]
    ties: tuple[tuple[str, ...], ...]
    rival: tuple[str, float] | None


Make = Callable[[Sequence[Edit]], Any]
Left = Callable[[Any], float]  # the share of what the port has that is not explained, 0 to 1
Explains = Callable[[Sequence[Edit]], bool]
Together = Callable[[Edit, Edit], bool]


def candidates(mistakes: Iterable[Mistake]) -> list[Candidate]:
    return [Candidate(one, name, edit) for one in mistakes for name, edit in one.variants.items()]


def best_fit(
    known: Sequence[Candidate],
    make: Make,
    left: Left,
    *,
    together: Together,
    most: int = MOST_TRIED,
    explains: Explains | None = None,
) -> Fit | None:
    """Return what explains all that the port has, None if nothing does.

    `make` returns what edits lead to, None where they cannot act; `left` how far that is from the
    port; `explains` whether it is nothing, which may be known sooner. Only what makes a difference
    by itself is tried in pairs, and only pairs that may go `together`.
    """
    right = make(())
    acting = [(one, made) for one in known if (made := tried(make, one)) and made != right]
    shares = [(one, left(made)) for one, made in acting]
    whole = [one for one, share in shares if share == 0]
    part = [(one.mistake.id, share) for one, share in shares if share > 0]
    rival = min(part, key=lambda row: row[1], default=None)
    if whole:
        return Fit((whole[0],), (others(whole, whole[0]),), rival)
    is_whole = explains or (lambda edits: bool(made := make(edits)) and left(made) == 0)
    pairs = fitting_pairs([one for one, _ in acting], is_whole, together, min(most, MOST_TRIED))
    if not pairs:
        return None
    first = pairs[0]
    apart = [one for pair in pairs if not overlap(pair, first) for one in pair]
    ties = tuple(others([*in_place_of(one, first, pairs), *apart], one) for one in first)
    return Fit(first, ties, rival)


def tried(make: Make, *which: Candidate) -> Any:
    """Return what comes of mistakes, None if they cannot be made here."""
    try:
        return make([one.edit for one in which])
    except InputError:
        return None


def fitting_pairs(
    acting: Sequence[Candidate], explains: Explains, together: Together, most: int
) -> list[tuple[Candidate, Candidate]]:
    return [pair for pair in pairs_of(acting, together)[:most] if tried(explains, *pair)]


def pairs_of(acting: Sequence[Candidate], together: Together) -> list[tuple[Candidate, Candidate]]:
    """Return all pairs, those first that need no other tokenizer, then one tokenizer by another."""
    builds = {id(one): at for at, one in enumerate(acting) if one.edit.step in BUILT}
    pairs = [
        (one, other) for one, other in combinations(acting, 2)
        if one.mistake is not other.mistake and together(one.edit, other.edit)
    ]  # fmt: skip
    return sorted(pairs, key=lambda pair: max(builds.get(id(one), -1) for one in pair))


def in_place_of(
    one: Candidate, pair: Sequence[Candidate], pairs: Sequence[Sequence[Candidate]]
) -> list[Candidate]:
    """Return what fits beside the rest of a pair as well as `one` does."""
    rest = [other for other in pair if other is not one]
    return [
        other for among in pairs if all(kept in among for kept in rest)
        for other in among if other not in rest
    ]  # fmt: skip


def overlap(pair: Sequence[Candidate], first: Sequence[Candidate]) -> bool:
    return any(one.mistake.id == other.mistake.id for one in pair for other in first)


def others(which: Sequence[Candidate], chosen: Candidate) -> tuple[str, ...]:
    """Return the ids of the rest, each once."""
    ids = dict.fromkeys(one.mistake.id for one in which)
    return tuple(id for id in ids if id != chosen.mistake.id)
