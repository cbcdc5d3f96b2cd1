"""A prompt at once gives what its tokens give one at a time, from a cache."""

from collections.abc import Iterable

import numpy as np

from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import BROKEN, Finding, not_tried
from lockstep.parity.laws.port import Refused

LAW = "prefill equals decoding"
POINTS_TO = (
    "the position of a decoded token: the cache's length off by one, or counting from 1 again",
    "the cache: keys stored before they are turned, a head too few, an entry overwritten",
    "a mask for decoding that hides the newest key, or the window's edge",
)
DID = "fed it one token at a time; and half of it, two tokens singly, the rest"


def check(bench: Bench) -> Finding:
    if bench.port.cached:
        return not_tried(LAW, f"the port {bench.port.cached}")
    length = len(bench.tokens)
    if length < 2:
        return not_tried(LAW, "--length 1 leaves nothing to decode")
    if bench.seeing:
        return not_tried(LAW, "later tokens matter, which no cache can give: mend that first")
    try:
        single = cached(bench, range(1, length))
        pieces = cached(bench, (length // 2, length // 2 + 1, length // 2 + 2))
    except Refused as error:
        said = f"the port {error}"
        return Finding(LAW, BROKEN, DID, float("inf"), bench.allowed, said, POINTS_TO)
    pairs = {"one at a time": (single, bench.base), "in pieces": (pieces, bench.base)}
    return bench.judged(LAW, DID, pairs, POINTS_TO)


def cached(bench: Bench, cuts: Iterable[int]) -> np.ndarray:
    """Return the logits (L, V) of the prompt cut at these places.

    A whole prompt one at a time hides positions that are all off by one: only distances count.
    """
    cache = bench.port.make_cache()
    pieces = [piece for piece in np.split(bench.tokens, list(cuts)) if len(piece)]
    return np.concatenate([bench.run(piece, cache=cache)[0] for piece in pieces])
