"""Examine one operation after another."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.parity.conformance.examine import Row, examine
from lockstep.parity.progress import Progress
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError

IN_A_ROW = 3  # operations at which a program may break before the rest is not tried


def chosen(names: Sequence[str]) -> list[str]:
    """Return the operations that are asked for, or all. Raises: InputError for an unknown one."""
    from difflib import get_close_matches

    for name in names:
        if name not in ops.__all__:
            near = get_close_matches(name, ops.__all__, n=3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise InputError("--op", f"{name!r} is no operation{hint}")
    return [name for name in ops.__all__ if name in names] if names else list(ops.__all__)


def conformance(
    backend: Any, names: Sequence[str], *, examples: int, seed: int, dtype: np.dtype,
    progress: Progress,
) -> list[Row]:  # fmt: skip
    """Return a row for each operation.

    Raises: InputError if the backend has none of them: nothing compared is no pass.
    """
    rows: list[Row] = []
    for number, op in enumerate(names):
        last = [row.status == "failed" and not row.example for row in rows[-IN_A_ROW:]]
        if len(last) == IN_A_ROW and all(last):
            rows += [Row(left, status="not tried") for left in names[number:]]
            break
        rows.append(examine(op, backend, examples=examples, seed=seed, dtype=dtype))
        progress(op)
    if all(row.status == "not implemented" for row in rows):
        raise InputError(backend.name, f"has none of the {len(rows)} operations asked for")
    return rows
