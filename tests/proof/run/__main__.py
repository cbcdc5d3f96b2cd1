"""The proof benchmark of `lockstep explain`: `python -m tests.proof.run --json FILE`.

Every case that was asked for is planted, dumped, explained and scored, and its outcome is written
to FILE as a line of JSON. A run that was stopped goes on if it is started again with the same FILE.
`python -m tests.proof.run.table FILE` makes the tables.
"""

import argparse
import json
import os
import platform
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from lockstep.parity.faults import catalogue
from tests.proof import ports
from tests.proof.registry import EVERY_DTYPE, every_bug
from tests.proof.run.case import KINDS, Case
from tests.proof.run.draw import Asked, every_case
from tests.proof.run.workers import PLACES, prepare, results
from tests.proof.selfcheck import CASES

# Below it are the seeds that fitted something: the gate's limits were fitted on 0 to 29 and 1000 to
# 3049, the engine's search was tried on 0 to 9.
FIRST_SEED = 10_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.run", description=__doc__)
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, nargs="+", help="of weights and prompts; else drawn")
    parser.add_argument("--builds", choices=CASES, default=CASES, **several)
    parser.add_argument("--dtypes", choices=EVERY_DTYPE, default=EVERY_DTYPE, **several)
    parser.add_argument(
        "--granularities", choices=ports.GRANULARITIES, default=ports.GRANULARITIES, **several
    )
    parser.add_argument("--kinds", choices=KINDS, default=KINDS, **several)
    ids = sorted({one.id for one in (*every_bug(), *catalogue())})
    parser.add_argument("--ids", choices=ids, default=[], help="classes, of bugs alone", **several)
    parser.add_argument("--weights", type=int, default=10, help="draws for each clean port")
    parser.add_argument(
        "--once", action="store_true", help="each bug in each build, its dtype and attention drawn"
    )
    parser.add_argument("--minutes", type=float, help="stop after so long: a fair sample")
    parser.add_argument("--limit", type=int, default=240, help="seconds of a processor for a call")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    return parser.parse_args()


def main() -> None:
    options = arguments()
    header, done = begun(options)
    began = time.monotonic()
    deadline = began + 60 * options.minutes if options.minutes else float("inf")
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        asked = Asked(**header["asked"])
        cases = every_case(asked, PLACES[0])
        left = [case for case in cases if case.key not in done]
        say(f"{len(cases)} cases, {len(left)} to do; seeds {header['asked']['seeds']}")
        found = results(left, options.workers, options.limit, folder, deadline)
        with options.json.open("a", encoding="utf-8") as file:
            try:
                for number, outcome in enumerate(found, start=1):
                    file.write(json.dumps(outcome) + "\n")
                    file.flush()
                    if number % 50 == 0:
                        say(f"{number} cases in {time.monotonic() - began:.0f} s")
            finally:
                file.write(json.dumps({"seconds": round(time.monotonic() - began)}) + "\n")


def begun(options: argparse.Namespace) -> tuple[dict[str, Any], set[str]]:
    """Return the header of a run, from its file if it has one, and the cases that are done."""
    if options.json.exists() and options.json.stat().st_size:
        text = options.json.read_text(encoding="utf-8")
        whole = text[: text.rindex("\n") + 1]  # a line that was cut off is run again
        options.json.write_text(whole, encoding="utf-8")
        first, *rest = whole.splitlines()
        outcomes = [json.loads(line) for line in rest]
        return json.loads(first), {Case.of(one["case"]).key for one in outcomes if "case" in one}
    seeds = options.seeds or [FIRST_SEED + secrets.randbelow(2**31 - FIRST_SEED)]
    names = ("builds", "dtypes", "granularities", "kinds", "weights", "once", "ids")
    header = {
        "asked": {"seeds": seeds} | {name: getattr(options, name) for name in names},
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": {"numpy": np.__version__, "torch": torch.__version__}
        | {"transformers": transformers.__version__, "python": platform.python_version()},
        "workers": options.workers,
        "minutes": options.minutes,
        "limit": options.limit,
        "clock": "processor",
    }
    options.json.write_text(json.dumps(header) + "\n", encoding="utf-8")
    return header, set()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
