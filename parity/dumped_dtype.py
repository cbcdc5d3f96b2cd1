"""In which precision a dump was computed: as it says, as it is stored, or as its values show."""

import numpy as np

from lockstep.parity.dump import Dump

EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
TELLING = (
    "logits",
    "lm_head",
    "model.norm",
    "transformer.ln_f",
)  # computed, where an embedding may be a mere copy
ENOUGH = 16  # values other than zero


def dtype_of(left: Dump, right: Dump) -> tuple[str, list[str]]:
    """Return the coarser dtype of the two sides, and a line for each that had to be found out."""
    found = [computed_in(side) for side in (left, right)]
    known = [name for name, _ in found if name in EPSILONS] or ["float32"]
    sides = zip(("left", "right"), found, strict=True)
    lines = [f"{side}: {why}" for side, (_, why) in sides if why]
    return max(known, key=EPSILONS.__getitem__), lines


def computed_in(dump: Dump) -> tuple[str, str | None]:
    """Return the dtype that a dump was computed in, and why if it had to be found out."""
    said = dump.about.get("dtype")
    if said in EPSILONS:
        return said, None
    name = next((tap for tap in TELLING if tap in dump.shapes), list(dump.shapes)[-1])
    values = dump.read(name)
    stored = values.dtype.name
    narrow = narrower(values) if stored == "float32" else None
    if narrow is None:
        return stored, None
    return narrow, f"stored as float32, but every value of {name} is a {narrow}: judged as that"


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
