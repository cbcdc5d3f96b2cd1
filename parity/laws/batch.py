"""A row of a batch gives what it gives alone."""

from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import BROKEN, Finding, not_tried
from lockstep.parity.laws.port import Refused
from lockstep.reference.checkpoint.errors import InputError

LAW = "the rest of the batch does not matter"
POINTS_TO = (
    "a reshape that mixes batch and heads, or batch and tokens",
    "one mask, one position or one cache for all rows",
    "a router's capacity, or a scale of quantised activations, taken over the whole batch",
)


def check(bench: Bench) -> Finding:
    if bench.port.batches:
        return not_tried(LAW, f"the port {bench.port.batches}")
    first, second = (bench.others(len(bench.tokens)) for _ in range(2))
    try:
        above, below = bench.run(bench.tokens, first), bench.run(second, bench.tokens)
    except (Refused, InputError) as error:
        return not_tried(LAW, f"the port takes no batch of two: {error}")
    found = bench.judged(
        LAW,
        "ran the prompt as the first of two rows, and as the second",
        {"as the first row": (above[0], bench.base), "as the second": (below[1], bench.base)},
        POINTS_TO,
    )
    bench.mixed = found.status == BROKEN
    return found
