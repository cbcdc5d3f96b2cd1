"""Which kernel's numbers a stored matrix has, and how its activations must lie."""

from functools import cache
from typing import Any
from weakref import ref

import numpy as np

from lockstep.fast.kernels import by_tiles
from lockstep.fast.kernels.again import empty_on_a_line
from lockstep.fast.kernels.by_digits import multiply_digits, rows_of
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.digits import EXACT, in_digits, with_digits
from lockstep.fast.kernels.few import PLACE, few_of, fits, multiply_few
from lockstep.fast.kernels.float_tile import FOUR
from lockstep.fast.kernels.formats import FORMATS, affine
from lockstep.fast.kernels.kernel import usable
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import ROWS, multiply, multiply_alone
from lockstep.fast.kernels.memory import FLOATS, LINE, seen
from lockstep.fast.kernels.tile import adds_two, possible
from lockstep.fast.shapes import Array, Weight
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor, Packed
from lockstep.reference.checkpoint.quantized import QuantizedTensor

LYING = ("STRETCH", "VECTORS", "SHARED", "NEAR", "TURN")  # how 64 codes lie, see `formats`
Form = tuple[Constants, tuple[Array, ...]]
_known: dict[int, tuple[Any, Form | None]] = {}


def product(x: Array, weight: Weight, *, digits: int = EXACT) -> Array | None:
    """Multiply float32 activations (M, K) by a matrix (N, K); None if no kernel is better.

    Codes are multiplied in whole numbers, if the processor can: many tokens of so many `digits`.
    That is so for a form that none knows, and for a float32 matrix and few tokens: there is nothing
    to unpack, and BLAS is as quick.
    """
    plain = isinstance(weight, np.ndarray) and weight.dtype == np.float32 and len(x) < FOUR
    form = None if plain or not usable() else stored(weight)
    if form is None or not x.size or not len(form[1][0]):
        return None
    return by_many(x, *form, digits) if len(x) >= FOUR else by_few(x, *form)


def by_few(x: Array, of: Constants, matrix: tuple[Array, ...]) -> Array:
    """Multiply fewer tokens than four, as whole numbers if codes lie for that.

    As floats is then done what of each token is not finite otherwise, for it alone.
    """
    out = np.empty((len(x), len(matrix[0])), np.float32)
    parts = of.numbers.get("parts", 1)
    if not fits(of, x.shape[1]):
        multiply_alone(*sizes(x, out), of, interleaved(x, parts), matrix, out)
        return out
    few = few_of(of, x.shape[1])
    room, lost = np.empty(LINE + len(x) * few.octets, np.uint8), np.zeros(1, np.uint8)
    given = few.order, few.zero, room, lost, np.ascontiguousarray(x), few.of, matrix, out
    multiply_few(*sizes(x, out, PLACE), *given)
    if lost[0]:
        mend(interleaved(x, parts), of, matrix, out)
    return out


def mend(x: Array, of: Constants, matrix: tuple[Array, ...], out: Array) -> None:
    """Do as floats what is not finite in `out`, of activations that are sorted already."""
    for token, lost in enumerate(~np.isfinite(out)):
        if lost.any():
            rows = slice(None) if lost.all() else lost
            parts = tuple(part[rows] for part in matrix)
            out[token, rows] = by_fours(x[token : token + 1], of, parts)[0]


def by_many(x: Array, of: Constants, matrix: tuple[Array, ...], digits: int) -> Array:
    """Multiply four tokens and more: codes as whole numbers, if the processor can."""
    out = empty_on_a_line(len(x), len(matrix[0]), np.float32)
    if "zero" in of.numbers and quicker(of.numbers["zero"], digits):
        in_whole_numbers(np.ascontiguousarray(x), of, matrix, digits, out)
    elif matrix[0].dtype == np.uint16 and by_tiles.fits(x.shape[1]):
        in_bfloat16(np.ascontiguousarray(x), of, matrix, out)
    else:
        sorted_x = interleaved(x, of.numbers.get("parts", 1))
        multiply(*sizes(sorted_x, out), of, sorted_x, matrix, out)
    return out


def quicker(zero: int, digits: int) -> bool:
    """Whether digits are quicker than floats: in words, not as many as are exact."""
    return possible(zero) and (digits < EXACT or not adds_two())


def in_whole_numbers(
    x: Array, of: Constants, matrix: tuple[Array, ...], digits: int, out: Array
) -> None:
    """Multiply activations in digits with codes; as floats those of tokens that have no digits,
    and all with rows whose scales are not finite: 0 times infinity is NaN.
    """
    form, parts = with_digits(of, digits), of.numbers.get("parts", 1)
    cut, unfit = in_digits(x, form)
    endless = np.zeros(out.shape[1], np.bool_)
    if not unfit.all():
        places = -(-out.shape[1] // rows_of(form))
        multiply_digits(x.size * out.shape[1], places, form, *cut, matrix, out, endless)
    if unfit.any():
        out[unfit] = by_fours(interleaved(x[unfit], parts), of, matrix)
    if endless.any():
        rows = tuple(part[endless] for part in matrix)
        out[:, endless] = by_fours(interleaved(x, parts), of, rows)


def in_bfloat16(x: Array, of: Constants, matrix: tuple[Array, ...], out: Array) -> None:
    """Multiply activations in three terms by rows of bfloat16; as floats tokens that have no terms,
    and what is not finite: infinity times a term of 0 is NaN.
    """
    unfit = by_tiles.product_of_terms(x, matrix[0].view(np.uint8), out)
    if unfit.any():
        out[unfit] = by_fours(x[unfit], of, matrix)
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(out.sum()):
            return
    lost = ~(np.isfinite(out) | unfit[:, None])
    tokens, rows = lost.any(axis=1), lost.any(axis=0)
    some = lost[tokens][:, rows]
    again = by_fours(x[tokens], of, matrix if rows.all() else (matrix[0][rows],))
    out[np.ix_(tokens, rows)] = np.where(some, again, out[np.ix_(tokens, rows)])


def by_fours(x: Array, of: Constants, matrix: tuple[Array, ...]) -> Array:
    """Multiply floats, sorted already, with zeros to make them fours: a token's bits depend on no
    other.
    """
    padded = np.zeros((-(-len(x) // FOUR) * FOUR, x.shape[1]), np.float32)
    padded[: len(x)] = x
    out = np.empty((len(padded), len(matrix[0])), np.float32)
    multiply(*sizes(padded, out), of, padded, matrix, out)
    return out[: len(x)]


def sizes(x: Array, out: Array, rows: int = ROWS) -> tuple[int, int]:
    """Return how many products there are, and at how many places, of so many rows each."""
    return x.size * out.shape[1], -(-out.shape[1] // rows)


def always_here(weight: Weight) -> bool:
    """Whether a kernel multiplies by a matrix however many tokens there are."""
    plain = isinstance(weight, np.ndarray) and weight.dtype == np.float32
    return not plain and stored(weight) is not None


def stored(weight: Weight) -> Form | None:
    """Return the numbers of a matrix's format, and its arrays as kernels take them.

    Of a packed one they are found once: a model asks again for every token.
    """
    if not isinstance(weight, Packed):
        return form_of(weight)
    known = _known.get(id(weight))
    if known is not None and known[0]() is weight:
        return known[1]
    form, key = form_of(weight), id(weight)
    _known[key] = ref(weight, lambda _: _known.pop(key, None)), form
    return form


def form_of(weight: Weight) -> Form | None:
    if isinstance(weight, QuantizedTensor):
        of = affine.layout(weight.bits, weight.group_size)
        octets = contiguous(weight.packed).view(np.uint8)
        return of, (octets, contiguous(weight.scales), contiguous(weight.biases))
    if isinstance(weight, BlockTensor):
        known = weight.format in FORMATS
        return (blocks(weight.format), (contiguous(weight.blocks),)) if known else None
    if not isinstance(weight, np.ndarray) or weight.dtype not in FLOATS or weight.shape[1] % WIDTH:
        return None
    return dense(weight.shape[1]), (contiguous(weight),)


@cache
def blocks(name: str) -> Constants:
    columns, size = BLOCKS[name]
    form = FORMATS[name]
    group, span = form.GROUP, getattr(form, "SPAN", form.GROUP)
    whole = {"zero": form.ZERO, "rest": getattr(form, "REST", 0), "span": span, "parts": 1}
    whole |= {name.lower(): getattr(form, name) for name in LYING if hasattr(form, name)}
    return Constants(format=name, group=group, size=size, step=size * group // columns, **whole)


@cache
def dense(columns: int) -> Constants:
    group = next(size for size in (4 * WIDTH, 2 * WIDTH, WIDTH) if columns % size == 0)
    return Constants(format="dense", group=group, step=group)


def interleaved(x: Array, parts: int) -> Array:
    """Sort columns as a format's vectors have them: by place within `parts` neighbours."""
    if parts == 1:
        return np.ascontiguousarray(x)
    runs = x.reshape(len(x), x.shape[1] // (WIDTH * parts), WIDTH, parts)
    return runs.swapaxes(2, 3).reshape(x.shape)


def contiguous(array: Array) -> Array:
    return seen(np.ascontiguousarray(array))
