"""In which precision a dump was computed: as it says, as it is stored, or as its values show."""

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import Parts, parts_of
from lockstep.parity.judging.judge import EPSILONS

# Computed, where an embedding may be a mere copy.
TELLING = ("logits", "lm_head", "model.norm", "transformer.ln_f")
ENOUGH = 16  # numbers other than zero: every NaN is one of half precision


def dtype_of(left: Dump, right: Dump, *, replayed: bool) -> tuple[str, list[str]]:
    """Return the dtype to judge in, and a line for each side where it had to be found out.

    That is the coarser of the two. But if `right` is replayed from its own values, nothing of
    `left` is in the judgement, and its rounding would only excuse errors of `right`.
    """
    found = {"left": computed_in(left), "right": computed_in(right)}
    if replayed and found["right"][0] in EPSILONS:
        del found["left"]
    known = [name for name, _ in found.values() if name in EPSILONS] or ["float32"]
    lines = [f"{side}: {why}" for side, (_, why) in found.items() if why]
    return max(known, key=EPSILONS.__getitem__), lines


def computed_in(dump: Dump) -> tuple[str, str | None]:
    """Return the dtype that a dump was computed in, and why if it had to be found out."""
    said = dump.about.get("dtype")
    if said in EPSILONS:
        return said, None
    names = [tap for tap in TELLING if tap in dump.shapes] or list(dump.shapes)[-1:]
    found = [stored_and_shown(dump.parts(name)) for name in names]
    # A head in half precision, alone, is an error of a float32 port, so the finest counts.
    stored, shown = min(found, key=lambda kinds: EPSILONS.get(kinds[1], 1.0))
    if shown == stored:
        return stored, None
    every = f"every value of {' and '.join(names)} is a {shown}"
    return shown, f"stored as {stored}, but {every}: judged as that"


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def stored_and_shown(values: np.ndarray | Parts) -> tuple[str, str]:
    """Return the dtype that values are stored in, and the one that they were widened from.

    NumPy has no bfloat16, and numbers of it go into float16 too, unless they are large.
    """
    values = parts_of(values)
    stored, filled = values.dtype.name, 0
    halves = ["bfloat16"] if stored == "float16" else [*HALVES]
    if stored not in ("float64", "float32", "float16"):
        return stored, stored
    for piece in values.pieces():
        narrow = np.ascontiguousarray(piece, np.float32)
        if filled < ENOUGH:
            filled += np.count_nonzero(np.isfinite(narrow) & (narrow != 0))
        halves = [name for name in halves if HALVES[name](narrow)]
        if not halves if stored != "float64" else not (narrow == piece).all():
            return stored, stored
    shown = halves[0] if halves else "float32"
    return stored, shown if filled >= ENOUGH else stored


def narrower(values: np.ndarray) -> str | None:
    """Return the half precision that float32 values were widened from, None if they were not."""
    shown = stored_and_shown(values)[1]
    return shown if shown in HALVES else None


def is_bfloat16(values: np.ndarray) -> bool:
    return not (values.view(np.uint32) & 0xFFFF).any()


def is_float16(values: np.ndarray) -> bool:
    return bool((values.astype(np.float16).astype(np.float32) == values).all())


HALVES = {"bfloat16": is_bfloat16, "float16": is_float16}
