"""A token's logits do not depend on what comes after it."""

import numpy as np

from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import BROKEN, Finding, not_tried

LAW = "later tokens do not matter"
POINTS_TO = (
    "the causal mask: missing, off by one, or not applied after a softcap",
    "a norm, a scale or a router's capacity taken over the whole sequence",
    "positions counted from the end of the prompt, or from its padded length",
)


def check(bench: Bench) -> Finding:
    """The first token has a law of its own, so it is left out here."""
    length = len(bench.tokens)
    if length < 3:
        return not_tried(LAW, f"--length {length} is too short")
    pairs, cuts = {}, sorted({length // 2, length - 1})
    for cut in cuts:
        kept = bench.tokens[:cut]
        changed = np.concatenate([kept, bench.others(length - cut, than=bench.tokens[cut:])])
        right = bench.base[1:cut]
        pairs[f"other tokens from {cut} on"] = with_first(bench.run(changed)[0], right, cut)
        pairs[f"cut off at {cut}"] = with_first(bench.run(kept)[0], right, cut)
    did = f"changed what follows token {' and '.join(str(cut - 1) for cut in cuts)}; cut it off"
    found = bench.judged(LAW, did, pairs, POINTS_TO)
    bench.seeing = found.status == BROKEN
    return found


def with_first(found: np.ndarray, right: np.ndarray, cut: int) -> tuple[np.ndarray, np.ndarray]:
    """Pair the rows, with an equal one in place of the first so that rows keep their numbers."""
    return np.concatenate([right[:1], found[1:cut]]), np.concatenate([right[:1], right])
