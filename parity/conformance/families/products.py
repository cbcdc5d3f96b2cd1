"""Matrix products: one row and many, dense and packed; sums of nothing, rank 0 and B = 0."""

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.draw import INFINITE, NAN, WIDTHS, Draw, Family
from lockstep.parity.conformance.families.packed import affine_matrix
from lockstep.parity.conformance.values import type_said, whole_numbers

HURT = INFINITE + NAN
PLAIN = ("whole", "normal", "small", "wide", "zeros")
ROWS = (1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 65)
COUNTS = (1, 2, 3, 0, 7, 8, 9, 16, 17, 33)
FACTORS = (1.0, 2.0, 0.5, -1.5)


def dense(draw: Draw, rows: int, columns: int) -> Given:
    return draw.array((rows, columns), fills=PLAIN)


def bias_of(draw: Draw, rows: int) -> Given:
    return draw.array((rows,), fills=PLAIN) if draw.flag() else Given(None, "None")


def linear(draw: Draw) -> dict[str, Given]:
    if draw.one_of((False, False, True)):
        weight = affine_matrix(draw)
    else:
        weight = dense(draw, draw.one_of(ROWS), draw.one_of((*WIDTHS, 1025, 0)))
    rows, columns = weight.value.shape
    x = draw.array((draw.one_of((1, 2)), draw.one_of(COUNTS), columns), fills=PLAIN, spikes=HURT)
    return {"x": x, "weight": weight, "bias": bias_of(draw, rows)}


def add_lora(draw: Draw) -> dict[str, Given]:
    batch, count, columns = draw.one_of((1, 2)), draw.one_of(COUNTS), draw.one_of(WIDTHS)
    rows, rank = draw.one_of(ROWS), draw.one_of((1, 2, 4, 8, 16, 64, 0))
    return {
        "y": draw.array((batch, count, rows), fills=PLAIN),
        "x": draw.array((batch, count, columns), fills=PLAIN, spikes=HURT),
        "a": dense(draw, rank, columns),
        "b": dense(draw, rows, rank),
        "scale": draw.option(FACTORS),
    }


def token_ids(draw: Draw, vocabulary: int) -> Given:
    batch, count = draw.one_of((1, 2)), draw.one_of(COUNTS)
    ids = [draw.whole(0, vocabulary - 1) for _ in range(min(batch * count, 3))]
    return whole_numbers(np.resize(np.array(ids, np.int64), (batch, count)))


def embedding(draw: Draw) -> dict[str, Given]:
    if draw.one_of((False, False, True)):
        table = affine_matrix(draw)
    else:
        table = dense(draw, draw.one_of(ROWS), draw.one_of(WIDTHS))
    dtype = Given(draw.dtype, f"np.dtype({type_said(draw.dtype)})")
    return {"tokens": token_ids(draw, table.value.shape[0]), "table": table, "dtype": dtype}


def add_lora_rows(draw: Draw) -> dict[str, Given]:
    vocabulary, width, rank = draw.one_of(ROWS), draw.one_of(WIDTHS), draw.one_of((1, 2, 8, 16, 0))
    tokens = token_ids(draw, vocabulary)
    return {
        "y": draw.array((*tokens.value.shape, width), fills=PLAIN),
        "tokens": tokens,
        "a": dense(draw, rank, width),
        "b": dense(draw, vocabulary, rank),
        "scale": draw.option(FACTORS),
    }


def dora_rescale(draw: Draw) -> dict[str, Given]:
    rows, columns, rank = draw.one_of(ROWS), draw.one_of(WIDTHS), draw.one_of((1, 2, 8))
    return {
        "y": draw.array((1, draw.one_of((1, 2, 9)), rows), fills=PLAIN),
        "weight": draw.array((rows, columns), fills=("constant", "normal")),
        "bias": bias_of(draw, rows),
        "a": draw.array((rank, columns), fills=("normal", "zeros")),
        "b": draw.array((rows, rank), fills=("zeros", "small")),
        "magnitude": draw.array((rows,), fills=("constant", "normal")),
        "scale": draw.option(FACTORS),
    }


PRODUCTS: Family = {
    "linear": linear,
    "embedding": embedding,
    "add_lora": add_lora,
    "add_lora_rows": add_lora_rows,
    "dora_rescale": dora_rescale,
}
