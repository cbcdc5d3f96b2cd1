"""In which precision a dump was computed: as it says, as it is stored, or as its values show."""

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.judge import EPSILONS

# Computed, where an embedding may be a mere copy.
TELLING = ("logits", "lm_head", "model.norm", "transformer.ln_f")
ENOUGH = 16  # values other than zero


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
    found = [stored_and_shown(dump.read(name)) for name in names]
    # A head in half precision, alone, is an error of a float32 port, so the finest counts.
    stored, shown = min(found, key=lambda kinds: EPSILONS.get(kinds[1], 1.0))
    if shown == stored:
        return stored, None
    every = f"every value of {' and '.join(names)} is a {shown}"
    return shown, f"stored as {stored}, but {every}: judged as that"


def stored_and_shown(values: np.ndarray) -> tuple[str, str]:
    """Return the dtype that values are stored in, and the one that they were widened from."""
    stored = values.dtype.name
    if stored == "float64":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = values.astype(np.float32)
        if not (narrow == values).all() or np.count_nonzero(values) < ENOUGH:
            return stored, stored
        return stored, narrower(narrow) or "float32"
    return stored, (narrower(values) if stored == "float32" else None) or stored


def narrower(values: np.ndarray) -> str | None:
    """Return the half precision that float32 values were widened from, None if they were not."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if np.count_nonzero(bits) < ENOUGH:
        return None
    if not (bits & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        same = (values.astype(np.float16).astype(np.float32) == values).all()
    return "float16" if same else None
