"""Attention: rows that see nothing, no keys, more queries than keys, windows, shared heads."""

import numpy as np

from lockstep.parity.conformance.case import Given, SeenKeys
from lockstep.parity.conformance.draw import FINITE, INFINITE, NAN, Draw, Family
from lockstep.parity.conformance.values import type_said, whole_numbers

PLAIN = ("whole", "normal", "small", "wide", "zeros")
FINITE_FILLS = ("whole", "normal", "small", "zeros")  # in half precision too
# Up to 8 queries, and from 1024 keys on, fused kernels are other kernels.
QUERIES = (1, 2, 3, 7, 8, 9, 16, 17, 32, 33)
MANY = 257  # queries: on a CPU the scores of 256 stand in memory at a time
KEYS = (1, 2, 3, 8, 9, 31, 32, 33, 64, 65, 1024, 1025)
WIDTH = (1, 2, 3, 8, 16, 64, 80, 96, 128, 256)
POLICIES = ("uniform", "zero", "nan")


def seen(draw: Draw, batch: int, queries: int, keys: int) -> SeenKeys:
    """Draw who sees whom: the end of a text, its beginning, padding on either side, a window."""
    start = draw.one_of((max(keys - queries, 0), 0, keys // 2))
    query = np.tile(np.arange(start, start + queries), (batch, 1))
    key = np.tile(np.arange(keys), (batch, 1))
    padded = draw.one_of((0, 0, 1, 2))
    if padded and keys:
        side = slice(0, padded) if draw.flag() else slice(-padded, None)
        key[draw.whole(0, batch - 1), side] = -1
    return SeenKeys(query, key, draw.one_of((None, None, 1, 2, 8)))


def mask(draw: Draw, batch: int, queries: int, keys: int) -> Given:
    one = seen(draw, batch, queries, keys)
    parts = ", ".join(whole_numbers(part).said for part in (one.queries, one.keys))
    return Given(one, f"causal_mask({parts}, window={one.window})")


def masked_row(draw: Draw) -> Given:
    return draw.option(POLICIES)


def sizes(draw: Draw) -> tuple[int, int, int, int, int, int]:
    """Draw B, H, G, L, S, D; many keys, or queries, come with few of everything else."""
    groups, keys = draw.one_of((1, 2, 3)), draw.one_of((*KEYS, 0))
    queries, few = draw.one_of(QUERIES if keys < 512 else (1, 2, 8, 9)), keys < 512
    if few and draw.one_of((False, False, False, True)):
        queries, few = MANY, False
    batch = draw.one_of((1, 2)) if few else 1
    heads = groups * (draw.one_of((1, 2, 4)) if few else 1)
    return batch, heads, groups, queries, keys, draw.one_of(WIDTH if few else WIDTH[:6])


def causal_mask(draw: Draw) -> dict[str, Given]:
    one = seen(draw, draw.one_of((1, 2)), draw.one_of(QUERIES), draw.one_of((*KEYS[:10], 0)))
    return {
        "query_positions": whole_numbers(one.queries),
        "key_positions": whole_numbers(one.keys),
        "window": Given(one.window, repr(one.window)),
    }


def attention_scores(draw: Draw) -> dict[str, Given]:
    batch, heads, groups, queries, keys, width = sizes(draw)
    return {
        "queries": draw.array((batch, heads, queries, width), fills=PLAIN, spikes=INFINITE + NAN),
        "keys": draw.array((batch, groups, keys, width), fills=PLAIN),
        "scale": draw.option((1.0, 0.125, 0.08838834764831845)),
    }


def softmax(draw: Draw) -> dict[str, Given]:
    batch, heads, _, queries, keys, _ = sizes(draw)
    spikes = (*FINITE, -5e4, 3e38, -3e38, *INFINITE[1:], *NAN)
    return {
        "scores": draw.array((batch, heads, queries, keys), spikes=spikes),
        "mask": mask(draw, batch, queries, keys),
        "masked_row": masked_row(draw),
    }


def attention_context(draw: Draw) -> dict[str, Given]:
    batch, heads, groups, queries, keys, width = sizes(draw)
    seen = mask(draw, batch, queries, keys)
    visible = np.broadcast_to(seen.value.array, (batch, heads, queries, keys))
    weights = visible / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    probs = weights.astype(draw.dtype)
    # A masked NaN spoils what ignores it in engines that multiply by 0, ours too: a convention.
    spikes = (*FINITE, *INFINITE, *NAN) if visible.all() else (-0.0, 1e4)
    scores = f"np.zeros({visible.shape}, {type_said(draw.dtype)})"
    told = f"softmax({scores}, {seen.said}, masked_row='zero')"
    return {
        "probs": Given(probs, told),
        "values": draw.array((batch, groups, keys, width), fills=FINITE_FILLS, spikes=spikes),
        "mask": seen,
    }


def attention(draw: Draw) -> dict[str, Given]:
    batch, heads, groups, queries, keys, width = sizes(draw)
    return {
        "queries": draw.array((batch, heads, queries, width), fills=FINITE_FILLS),
        "keys": draw.array((batch, groups, keys, width), fills=FINITE_FILLS),
        "values": draw.array((batch, groups, keys, width), fills=FINITE_FILLS),
        "mask": mask(draw, batch, queries, keys),
        "scale": draw.option((1.0, 0.125, 0.08838834764831845)),
        "masked_row": masked_row(draw),
    }


ATTENTION: Family = {
    "causal_mask": causal_mask,
    "attention_scores": attention_scores,
    "softmax": softmax,
    "attention_context": attention_context,
    "attention": attention,
}
