"""What engines do in a way of their own, by what a capture of them says: no mistakes of a port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.faults.fault import Fault

UNTURNED = frozenset({"consistent-qk-permutation"})  # their rows are in the order of the files


@dataclass(frozen=True)
class Ways:
    """The ways of one engine.

    `first` is the family of the catalogue that holds them: of two entries that do the same, its own
    go first. `scales_later` says that it scales embeddings beside their module. `never` are
    conventions that it does not have.
    """

    first: str = ""
    scales_later: bool = False
    never: frozenset[str] = field(default_factory=frozenset)

    def ordered(self, known: Sequence[Fault]) -> tuple[Fault, ...]:
        """Return what is to be thought of, in this order."""
        kept = [one for one in known if one.id not in self.never]
        return tuple(sorted(kept, key=lambda one: bool(self.first) and one.family != self.first))


HALF_SUMS = (
    "MLX sums products with packed weights in {dtype} on a CPU, far from the truth: if it ran on "
    "one, what is unexplained may be that; run it in float32"
)
OF_BACKEND = {"llama.cpp": Ways(first="llama_cpp")}
OF_LIBRARY = {
    "mlx_lm": Ways(scales_later=True, never=UNTURNED),
    "transformers": Ways(never=UNTURNED),
}


def ways_of(dump: Dump) -> Ways:
    """Return the ways of the engine that a dump says it is from, none of an unknown one."""
    about = dump.about
    found = OF_LIBRARY.get(about.get("library", ""))
    return found or OF_BACKEND.get(about.get("backend", ""), Ways())


def sums_in_half(dump: Dump, dtype: str, *, packed: bool) -> list[str]:
    """Return the warning that a dump of MLX deserves whose packed model ran in half precision."""
    of_mlx = dump.about.get("backend") == "mlx" and packed
    return [HALF_SUMS.format(dtype=dtype)] * (of_mlx and dtype in ("bfloat16", "float16"))
