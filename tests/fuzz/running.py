"""What every fuzzer does beside making cases: count how they end, and take its command line."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable

Report = Callable[[str], object]
Fuzz = Callable[[int, int, Report], Counter[str]]


def tally(numbers: Iterable[int], run: Callable[[int], str], report: Report) -> Counter[str]:
    """Run each case and return how many fell into each class. Failures go to `report`."""
    outcomes: Counter[str] = Counter()
    for number in numbers:
        try:
            outcomes[run(number)] += 1
        except Exception as error:
            # Whatever is not an InputError is a bug of the reader.
            outcomes["FAILED"] += 1
            report(f"seed {number}: {type(error).__name__}: {error}")
    return outcomes


def command(description: str, what: str, fuzz: Fuzz) -> int:
    """Fuzz as the command line says, print the counts, and return the exit code."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("count", type=int, help=f"how many {what}s")
    parser.add_argument("seed", type=int, help=f"number of the first {what}")
    arguments = parser.parse_args()
    outcomes = fuzz(arguments.count, arguments.seed, lambda text: print(text, file=sys.stderr))
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:10d} {outcome}")
    return 1 if outcomes["FAILED"] else 0
