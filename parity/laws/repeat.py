"""The same tokens give the same logits, whatever was run in between."""

from lockstep.parity.laws.bench import Bench, apart
from lockstep.parity.laws.finding import Finding

LAW = "the same tokens twice"
POINTS_TO = (
    "a cache, or a position, that the call before left behind",
    "dropout, or noise of the router, as in training",
    "memory that is read before it was written; sums whose order depends on threads",
)


def check(bench: Bench) -> Finding:
    at_once = bench.run(bench.tokens)[0]
    bench.run(bench.others(len(bench.tokens)))
    later = bench.run(bench.tokens)[0]
    found = bench.judged(
        LAW,
        "ran the prompt again, then once more after another one",
        {"at once": (at_once, bench.base), "after another prompt": (later, bench.base)},
        POINTS_TO,
    )
    bench.unsteady = max(apart(at_once, bench.base), apart(later, bench.base))
    if bench.unsteady == float("inf"):
        bench.unsteady = 0.0
    return found
