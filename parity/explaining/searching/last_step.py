"""The last step of a search: what all but explains a piece, changed in what no step showed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.by_few_tokens import in_other_variants
from lockstep.parity.explaining.searching.seen import BEGUN

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.growing import Growing
    from lockstep.parity.explaining.searching.hypothesis import Atom

NEAR = 3  # sets that nearly explain a piece, which are changed


def last_steps(
    search: Growing, beam: Iterable[Atoms], candidates: Sequence[Atom]
) -> Iterator[Atoms]:
    """Yield the sets that all but explain the piece, with a bug more, or one in another variant.

    One bug that hardly moves what it should be may move what the port has. One that rounds coarsely
    makes noise: no measure that is not told of it says that the right one is nearer. And beside the
    last bug that was found, another variant of an earlier one may be the right one.
    """
    near = [atoms for atoms in beam if atoms and search.fit(atoms)[0] <= BEGUN][:NEAR]
    quiet = [atom for atom in search.atoms if near and not search.possible(atom)]
    larger = [*larger_by_one(near, quiet), *in_other_variants(near, candidates)]
    search.look_at(larger, None)
    yield from larger
    yield from larger_by_one(near, [one for one in candidates if one.hypothesis.fault.coarse])


def larger_by_one(some: Sequence[Atoms], bugs: Sequence[Atom]) -> Iterator[Atoms]:
    return (atoms | {one} for atoms in some for one in bugs if one not in atoms)
