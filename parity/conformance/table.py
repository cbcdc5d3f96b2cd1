"""What came of a run: a table for a person, a document for a program."""

import math
from collections import Counter
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from lockstep.parity.cli.output import counted, table
from lockstep.parity.conformance.examine import Row

BAD = ("differs", "failed")
RAN = ("ok", *BAD)
IMPORTS = {
    "filled(": "from lockstep.parity.conformance.values import filled",
    "affine(": "from lockstep.parity.conformance.packing import affine",
    "minifloat(": "from lockstep.parity.conformance.packing import minifloat",
    "blocks(": "from lockstep.parity.conformance.packing import blocks",
    "causal_mask(": "from lockstep.reference.ops import causal_mask",
    "softmax(": "from lockstep.reference.ops import softmax",
    "top_k_routing(": "from lockstep.reference.ops import top_k_routing",
    "ml_dtypes.": "import ml_dtypes",
}


def described(rows: Sequence[Row], name: str, again: str) -> str:
    """Lay out the operations, then the smallest example of each that failed."""
    cells = [("operation", "", "examples", "worst", "of what is allowed")]
    cells += [(row.op, row.status, tried(row), *worst(row)) for row in rows if row.status in RAN]
    counts = Counter(row.status for row in rows)
    verdict = "DIFFERS" if any(row.status in BAD for row in rows) else "CONFORMS"
    parts = [f"{number} {status}" for status, number in counts.items()]
    return "\n\n".join(
        [
            f"{verdict}  {name}\n{counted(rows, 'operation')}: {', '.join(parts)}",
            table(cells, right=frozenset({2, 3, 4})),
            *(left_out(rows, status) for status in counts if status not in RAN),
            *(failure(row, again) for row in rows if row.status in BAD),
        ]
    )


def left_out(rows: Sequence[Row], status: str) -> str:
    names = ", ".join(row.op for row in rows if row.status == status)
    return "\n".join(wrap(f"{status}: {names}", 96, subsequent_indent="  "))


def tried(row: Row) -> str:
    return f"{row.examples - row.left_out}" + (f" of {row.examples}" if row.left_out else "")


def worst(row: Row) -> tuple[str, str]:
    if row.status != "ok":
        return "-", "-"
    return f"{row.ratio:.2g}", f"{100 * row.share:.0f} %"


def failure(row: Row, again: str) -> str:
    """Tell of the smallest example, in Python that runs."""
    if not row.example:
        return f"{row.op} {row.status}: {row.place}"
    text = "\n".join(row.example)
    needed = [line for word, line in IMPORTS.items() if word in "\n".join(row.example[:-1])]
    lines = ["import numpy as np", *needed, *row.example]
    shown = "\n".join(f"  {line}" for line in (lines if "np." in text else lines[1:]))
    head = f"{row.op} {row.status}; the smallest example:"
    return f"{head}\n{shown}\n  # {row.place}\nagain: {again} --op {row.op}"


def document(rows: Sequence[Row], name: str, **about: Any) -> dict[str, Any]:
    """Return the result as JSON."""
    bad = any(row.status in BAD for row in rows)
    listed = [
        {
            "op": row.op, "status": row.status, "examples": row.examples,
            "not_implemented": row.left_out, "ratio": number(row.ratio),
            "share": number(row.share), "example": list(row.example), "place": row.place,
        }
        for row in rows
    ]  # fmt: skip
    return {"verdict": "differs" if bad else "conforms", "backend": name, **about, "ops": listed}


def number(value: float) -> float | None:
    return value if math.isfinite(value) else None
