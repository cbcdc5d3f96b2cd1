"""Bring a dumped tensor into the shape that its tap has here, by moves that lose nothing."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts, held
from lockstep.parity.naming.heads import heads_last, with_groups
from lockstep.parity.naming.llama_cpp import family_of
from lockstep.parity.naming.names import is_tap, parted, sparse_layers, tap_named, unwrapped
from lockstep.parity.naming.rotary_order import in_halves
from lockstep.reference.checkpoint.errors import InputError, show

Shape = tuple[int, ...]
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Alignment:
    """Where each tap of a dump is found, and what had to be moved to compare it."""

    dump: Dump
    names: Mapping[str, str]  # tap -> dumped name, in the order of the dump
    renamed: int
    moved: Counter[str] = field(default_factory=Counter)
    told: tuple[str, ...] = ()  # lines on where names came from, before those of this plan
    made_up: int = 0  # how many of the dump's names nobody wrote: they are parts of others

    def read(self, tap: str, shape: Shape | None = None) -> np.ndarray:
        """Return the tensor of a tap in `shape`, or as it was dumped if no move leads there."""
        array = self.raw(tap, shape)
        name = move_between(array.shape, shape) if shape is not None else None
        if name is None or shape is None:
            return array
        self.moved[name] += name != "none"
        return MOVES[name](array, shape)

    def parts(self, tap: str, shape: Shape | None = None) -> Parts:
        """Return it to be read a part at a time; whole, where numbers have to change places."""
        found = self.dump.shapes[self.names[tap]]
        name = None if shape is None else move_between(found, shape)
        if self.rearranges or (name is not None and name not in IN_ORDER):
            return held(self.read(tap, shape))
        tensor = self.dump.parts(self.names[tap])
        if name is None or shape is None:
            return tensor
        self.moved[name] += name != "none"
        return tensor.reshaped(shape)

    @property
    def rearranges(self) -> bool:
        """Whether `read` puts numbers into another order, or reads them from elsewhere."""
        return False

    def raw(self, tap: str, shape: Shape | None) -> np.ndarray:
        """Return the tensor of a tap as it was dumped; `shape` is what is wanted of it."""
        return self.dump.read(self.names[tap])

    @property
    def plan(self) -> list[str]:
        """Return what was done to make the two sides comparable, a line each."""
        lines = [f"{name} in {count} tensors" for name, count in self.moved.items() if count]
        total = len(self.dump.shapes) - self.made_up
        mapped = [f"{self.renamed} of {total} names mapped to taps"] * bool(self.renamed)
        return [*self.told, *mapped, *lines]


def align(
    dump: Dump,
    *,
    mapped: Mapping[str, str] = NOTHING,
    told: Sequence[str] = (),
    known: Collection[str] = (),
) -> Alignment:
    """Map the names of a dump onto taps.

    `mapped` gives taps of names that a map or a recovery told, `told` its lines for the plan, and
    `known` the taps that the model has, where a model is at hand.
    A module and its last part give one tensor, and hooks dump both: the part's own name wins.
    Raises: InputError if two other names mean one tap, since nothing says which is right.
    """
    names: dict[str, str] = {}
    sparse = sparse_layers(parted(tap_named(name))[1] for name in (known or dump.shapes))
    family = family_of(known or dump.shapes)
    for name in dump.shapes:
        tap = mapped.get(name) or tap_named(name, sparse=sparse, family=family)
        other = names.setdefault(tap, name)
        if other == name:
            continue
        own, others = (one in mapped or is_own(one, tap) for one in (name, other))
        if own == others:
            both = f"{show(other, 48)} and {show(name, 48)}"
            raise InputError(dump.path, f"two names mean one tap: {both}", tap)
        names[tap] = name if own else other
    renamed = sum(tap != name and (is_tap(tap) or tap in known) for tap, name in names.items())
    meant = {name: tap for tap, name in names.items()}
    dump, moved = in_halves(dump, lambda name: meant.get(name, ""))
    return Alignment(dump, names, renamed, told=(*told, *moved))


def is_own(name: str, tap: str) -> bool:
    """Say whether a name is the tap's own, but for a wrapper before it."""
    return unwrapped(name) == tap


@lru_cache(maxsize=4096)
def move_between(found: Shape, wanted: Shape) -> str | None:
    """Return the name of the first move that leads from one shape to the other, None if none."""
    probe = np.broadcast_to(np.zeros((), bool), found)
    for name, move in MOVES.items():
        try:
            if move(probe, wanted).shape == wanted:
                return name
        except (ValueError, IndexError):  # IndexError: NumPy has no room for one more axis
            continue
    return None


def heads_swapped(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, L, H, D) against (B, H, L, D)."""
    return np.swapaxes(x, -2, -3) if x.ndim > 2 else x


def heads_merged(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, L, H, D) against (B, L, H*D), token by token."""
    if len(wanted) < 2 or x.shape[:2] != wanted[:2]:
        raise ValueError("the tokens are not where they should be")
    return x.reshape(wanted)


def heads_swapped_and_merged(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, H, L, D) against (B, L, H*D)."""
    return heads_merged(heads_swapped(x, wanted), wanted)


def heads_split_and_swapped(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, L, H*D) against (B, H, L, D)."""
    if len(wanted) != 4 or x.shape != (wanted[0], wanted[2], wanted[1] * wanted[3]):
        raise ValueError("no tokens with the numbers of all heads")
    return heads_swapped(x.reshape(wanted[0], wanted[2], wanted[1], wanted[3]), wanted)


def tokens_first(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(L, B, H, D), as sequences before batches have it, against (B, L, H, D)."""
    if x.ndim != 4:
        raise ValueError("no tokens, batch, heads and numbers of a head")
    return np.swapaxes(x, 0, 1)


def tokens_last(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B, H, D, L), as keys are multiplied by, against (B, H, L, D)."""
    if x.ndim != 4:
        raise ValueError("no batch, heads, numbers of a head and tokens")
    return np.swapaxes(x, -1, -2)


def rows_parted(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B*L, D) against (B, L, D): routers and experts see all tokens of a batch as one list."""
    if len(wanted) < 3 or (x.shape[:1], x.shape[1:]) != ((wanted[0] * wanted[1],), wanted[2:]):
        raise ValueError("the rows are not the tokens of a batch")
    return x.reshape(wanted)


def last_row(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(D,) against (1, 1, D): logits of one token are often written without axes."""
    if x.ndim != 1:
        raise ValueError("more than one row")
    return x[None, None]


def all_in_a_line(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(B*L*D,) against (B, L, D): buffers are often written without any axis."""
    if x.ndim != 1 or wanted[:2] == (1, 1):
        raise ValueError("more than one axis, or one token alone")
    return x.reshape(wanted)


def tokens_behind(x: np.ndarray, wanted: Shape) -> np.ndarray:
    """(D, L) against (1, L, D): columns are tokens where matrices lie column by column."""
    if x.ndim != 2 or x.shape[1:] != wanted[1:2]:
        raise ValueError("no matrix with a column for each token")
    return x.T.reshape(wanted)


BARE_MOVES: dict[str, Callable[[np.ndarray, Shape], np.ndarray]] = {
    "heads and tokens swapped": heads_swapped,
    "tokens brought before a head's numbers": tokens_last,
    "heads merged or split": heads_merged,
    "heads and tokens swapped, heads merged": heads_swapped_and_merged,
    "heads split and brought before tokens": heads_split_and_swapped,
    "heads brought before a matrix": heads_last,
}
# Nothing here repeats a value: a shape that only broadcasting would make fit does not fit.
MOVES: dict[str, Callable[[np.ndarray, Shape], np.ndarray]] = {
    "none": lambda x, wanted: x,
    "batch axis added": lambda x, wanted: x[None],
    "batch and token axes added": last_row,
    "batch axis dropped": lambda x, wanted: x.squeeze(0),
    "batch and tokens parted": rows_parted,
    **BARE_MOVES,
    **{
        f"batch axis added, {name}": lambda x, wanted, move=move: move(x[None], wanted)
        for name, move in BARE_MOVES.items()
    },
    "batch and tokens swapped": tokens_first,
    **{
        f"batch and tokens swapped, {name}": lambda x, wanted, move=move: move(
            tokens_first(x, wanted), wanted
        )
        for name, move in BARE_MOVES.items()
    },
    "a line of numbers cut into rows": all_in_a_line,
    "tokens brought before a row's numbers": tokens_behind,
}
OF_HEADS = ("none", "batch axis added", "heads and tokens swapped",
            "batch axis added, heads and tokens swapped")  # fmt: skip
MOVES |= with_groups({name: MOVES[name] for name in OF_HEADS})
# These leave numbers in their order, whatever the shape.
IN_ORDER = ("none", "batch axis added", "batch and token axes added", "batch axis dropped",
            "batch and tokens parted", "heads merged or split",
            "batch axis added, heads merged or split",
            "a line of numbers cut into rows", "groups of heads merged",
            "groups of heads merged, batch axis added")  # fmt: skip
