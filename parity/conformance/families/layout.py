"""Operations that move numbers and round nothing: every bit counts, and NaN moves too."""

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.draw import ANY, COUNTS, Draw, Family
from lockstep.parity.conformance.values import whole_numbers

HEADS = (1, 2, 3, 4, 8)
WIDTH = (1, 2, 3, 4, 8, 32, 64, 80, 128)


def tokens(draw: Draw) -> tuple[int, int]:
    return draw.one_of((1, 2, 3)), draw.one_of(COUNTS)


def split_heads(draw: Draw) -> dict[str, Given]:
    heads = draw.option(HEADS)
    x = draw.array((*tokens(draw), heads.value * draw.one_of(WIDTH)), spikes=ANY)
    return {"x": x, "heads": heads}


def merge_heads(draw: Draw) -> dict[str, Given]:
    batch, count = tokens(draw)
    return {"x": draw.array((batch, draw.one_of(HEADS), count, draw.one_of(WIDTH)), spikes=ANY)}


def heads_first(draw: Draw) -> dict[str, Given]:
    return {"x": draw.array((*tokens(draw), draw.one_of(HEADS), draw.one_of(WIDTH)), spikes=ANY)}


def take_rows(draw: Draw) -> dict[str, Given]:
    batch, count = draw.one_of((1, 2, 3)), draw.one_of((1, 2, 3, 9, 33))
    index = np.array([draw.whole(0, count - 1) for _ in range(batch)])
    x = draw.array((batch, count, draw.one_of(WIDTH)), spikes=ANY)
    return {"x": x, "index": whole_numbers(index)}


def concatenate(draw: Draw) -> dict[str, Given]:
    batch, heads, width = draw.one_of((1, 2)), draw.one_of(HEADS), draw.one_of(WIDTH)
    past, new = draw.one_of((1, 0, 2, 31, 32, 33)), draw.one_of(COUNTS)
    return {
        "past": draw.array((batch, heads, past, width), spikes=ANY),
        "new": draw.array((batch, heads, new, width), spikes=ANY),
    }


def column_block(draw: Draw) -> dict[str, Given]:
    blocks = draw.whole(1, 4)
    x = draw.array((*tokens(draw), blocks * draw.one_of(WIDTH)), spikes=ANY)
    block = draw.whole(0, blocks - 1)
    return {"x": x, "block": Given(block, str(block)), "blocks": Given(blocks, str(blocks))}


LAYOUT: Family = {
    "split_heads": split_heads,
    "merge_heads": merge_heads,
    "heads_first": heads_first,
    "take_rows": take_rows,
    "concatenate": concatenate,
    "column_block": column_block,
}
