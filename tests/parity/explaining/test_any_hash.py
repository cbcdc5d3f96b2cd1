"""Python hashes strings anew in each process, and what is explained is the same in all. By law."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lockstep.parity.explaining.said.report import report
from lockstep.parity.explaining.searching.seen import Seen
from tests.parity.explaining.ports import explained, port

ROOT = Path(__file__).parents[3]
MAIN = "from tests.parity.explaining.test_any_hash import main; main()"
NAME = "models/untied_float32"
BUGS = (
    "norm-plus-one-missing",
    "rope-sign-flipped",  # which others do as well
    "act-silu-vs-gelu[gelu (tanh) for silu]",
)


def main() -> None:
    """Print all that is found in a port with several bugs, and in which order sets are tried."""
    tried: dict[tuple[str, ...], None] = {}
    look, look_at = Seen.look, Seen.look_at

    def noted(atoms):
        tried.setdefault(tuple(sorted(map(repr, atoms))))
        return atoms

    Seen.look = lambda self, atoms, rows: look(self, noted(atoms), rows)
    Seen.look_at = lambda self, some, rows: look_at(self, [*map(noted, some)], rows)
    found = explained(NAME, port(NAME, BUGS, level="layers"))
    found.seconds = 0.0
    print(json.dumps(found.to_json()), report(found), *tried, sep="\n")


def printed(seed: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", MAIN],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True,
    )  # fmt: skip
    assert (run.stderr, run.returncode) == ("", 0)
    return run.stdout


def test_nothing_hangs_on_the_order_of_sets():
    one, other = map(printed, "12")
    found = json.loads(one.partition("\n")[0])["faults"]
    assert {fault["id"] for fault in found} == {bug.partition("[")[0] for bug in BUGS}
    assert any(fault["also_fits"] for fault in found)
    assert one == other
