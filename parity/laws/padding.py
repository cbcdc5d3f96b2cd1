"""A short row of a padded batch gives what it gives alone, and goes on as it does alone."""

import numpy as np

from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import BROKEN, Finding, not_tried
from lockstep.parity.laws.port import Refused
from lockstep.reference.checkpoint.errors import InputError

LAW = "padding does not matter"
POINTS_TO = (
    "the padding mask: missing, inverted, or forgotten for the keys that are in the cache",
    "the position of the first token after a padded prompt: the padded length, not its own",
    "the last token's logits taken at the padded end",
)


Pairs = dict[str, tuple[np.ndarray, np.ndarray]]


def check(bench: Bench) -> Finding:
    if bench.port.padded:
        return not_tried(LAW, f"the port {bench.port.padded}")
    length = len(bench.tokens)
    if length < 3:
        return not_tried(LAW, f"--length {length} is too short")
    if bench.mixed:
        return not_tried(LAW, "the rest of the batch matters, which has to be mended first")
    short = max(length // 2, 1)
    try:
        pairs = padded_prefill(bench, short)
        if not bench.port.cached:
            pairs |= padded_step(bench, short)
    except (Refused, InputError) as error:
        did = "ran a short prompt beside a long one"
        return Finding(LAW, BROKEN, did, float("inf"), bench.allowed, f"{error}", POINTS_TO)
    more = "; then one step more" if not bench.port.cached else ""
    did = f"ran {short} tokens of it, padded, beside {length} others{more}"
    return bench.judged(LAW, did, pairs, POINTS_TO)


def padded(bench: Bench, short: int, filler: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a whole row over a short one, and the token counts of both."""
    row = np.concatenate([bench.tokens[:short], filler])
    return np.stack([bench.others(len(bench.tokens)), row]), np.array([len(bench.tokens), short])


def padded_prefill(bench: Bench, short: int) -> Pairs:
    """Hold the short row against the same tokens alone."""
    found, missing = {}, len(bench.tokens) - short
    right = bench.run(bench.tokens[:short])[0]
    for name, filler in (("zeros", np.zeros(missing, np.int64)), ("others", bench.others(missing))):
        rows, lengths = padded(bench, short, filler)
        found[f"padded by {name}"] = bench.run(*rows, lengths=lengths)[1, :short], right
    return found


def padded_step(bench: Bench, short: int) -> Pairs:
    """Go on by the prompt's own next token, and do the same with the short prompt alone."""
    rows, lengths = padded(bench, short, bench.others(len(bench.tokens) - short))
    beside, alone = bench.port.make_cache(), bench.port.make_cache()
    bench.run(*rows, cache=beside, lengths=lengths)
    bench.run(bench.tokens[:short], cache=alone)
    token = bench.tokens[short : short + 1]
    right = bench.run(token, cache=alone)[0]
    return {"one step further": (bench.run(rows[0, -1:], token, cache=beside)[1], right)}
