"""What came of the laws: a table for a person, a document for a program."""

from collections.abc import Sequence
from typing import Any

from lockstep.parity.cli.output import counted, table
from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import BROKEN, NOT_TRIED, PASS, Finding

HALF = ("float16", "bfloat16")


def described(bench: Bench, found: Sequence[Finding]) -> str:
    """Lay out the laws, then what was done, and what a broken one points to."""
    broken = [one for one in found if one.status == BROKEN]
    verdict = "BROKEN" if broken else "KEPT"
    rows = [("law", "", "measured", "allowed", "")]
    rows += [(one.law, one.status, *figures(one), one.said) for one in found]
    notes = [pointed(one) for one in broken]
    if broken and bench.dtype not in HALF:
        notes.append(
            f"judged as {bench.dtype}; a port that computes in half precision and widens its "
            "logits\nis judged as that with --dtype bfloat16 or float16"
        )
    counts = ", ".join(
        f"{sum(one.status == status for one in found)} {status}"
        for status in (PASS, BROKEN, NOT_TRIED)
    )
    head = (
        f"{verdict}  {bench.port.name}\n{counted(found, 'law')}: {counts}; "
        f"{counted(bench.tokens, 'token')}, logits in {bench.dtype}"
    )
    did = [(one.law, one.did) for one in found if one.did]
    return "\n\n".join([head, table(rows), "what was done\n" + table(did), *notes])


def figures(one: Finding) -> tuple[str, str]:
    if one.figure is None or one.allowed is None:
        return "-", "-"
    return f"{one.figure:.2g}", f"{one.allowed:.2g}"


def pointed(one: Finding) -> str:
    lines = "\n".join(f"  - {line}" for line in one.points_to)
    return f"{one.law}: broken, which points to\n{lines}"


def document(bench: Bench, found: Sequence[Finding], **about: Any) -> dict[str, Any]:
    """Return the result as JSON."""
    broken = any(one.status == BROKEN for one in found)
    return {
        "verdict": "broken" if broken else "kept",
        "port": bench.port.name,
        "dtype": bench.dtype,
        "tokens": bench.tokens.tolist(),
        **about,
        "laws": [one.to_json() for one in found],
    }
