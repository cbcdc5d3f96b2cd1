"""One look at two tensors, for `diff`: sixteen float64 at once, which round as sums should.

As in `lanes.py` each function is one or two instructions of LLVM, which cuts them to the width that
the processor has.
"""

from math import inf
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.fast.kernels.lanes import (
    FLOAT,
    HALF,
    I16,
    I32,
    WIDTH,
    Lanes,
    instruction,
    spread,
    vector,
)
from lockstep.fast.kernels.parts import inlined

DOUBLE, I64 = ir.DoubleType(), ir.IntType(64)
Doubles = Lanes("Doubles", DOUBLE)
KINDS = {
    types.float64: (DOUBLE, 8),
    types.float32: (FLOAT, 4),
    types.uint16: (I16, 2),
    types.int16: (HALF, 2),
}  # what lies in an array, and the bytes of one
# Keys are counted so many behind: the processor counts some while it makes others.
BEHIND = 64


def filled(element: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(vector(element), [value] * WIDTH)


def address(context: Any, builder: Any, signature: Any, arguments: Any, element: ir.Type) -> Any:
    """Return where in an array, the first argument, the vector begins at a place, the second."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    first = builder.gep(array.data, [arguments[1]])
    return builder.bitcast(first, vector(element).as_pointer())


@instruction
def doubles(_: Any, array: Any, place: Any) -> Any:
    """Read sixteen numbers of an array: float64, float32, bfloat16 as uint16, float16 as int16."""
    kind, align = KINDS[array.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = address(context, builder, signature, arguments, kind)
        value = builder.load(where, align=align)
        if kind == I16:
            value = builder.shl(builder.zext(value, vector(I32)), filled(I32, 16))
            value = builder.bitcast(value, vector(FLOAT))
        if kind == HALF:
            value = builder.fpext(value, vector(FLOAT))
        return value if kind == DOUBLE else builder.fpext(value, vector(DOUBLE))

    return Doubles(array, types.intp), generate


@instruction
def no_doubles(_: Any) -> Any:
    """Return zeros."""
    return Doubles(), lambda context, builder, sig, arguments: filled(DOUBLE, 0.0)


@instruction
def minus(_: Any, left: Any, right: Any) -> Any:
    return Doubles(Doubles, Doubles), lambda context, builder, sig, arguments: builder.fsub(
        *arguments
    )


@instruction
def plus(_: Any, left: Any, right: Any) -> Any:
    return Doubles(Doubles, Doubles), lambda context, builder, sig, arguments: builder.fadd(
        *arguments
    )


@instruction
def and_product(_: Any, added: Any, left: Any, right: Any) -> Any:
    """Return `added + left * right`, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        added, left, right = arguments
        return called(builder, "fma", left, right, added)

    return Doubles(Doubles, Doubles, Doubles), generate


@instruction
def or_larger(_: Any, most: Any, lanes: Any) -> Any:
    """Return what is larger, `most` or the magnitude of the lanes; `most` beside NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        most, size = arguments[0], called(builder, "fabs", arguments[1])
        return builder.select(builder.fcmp_ordered(">", size, most), size, most)

    return Doubles(Doubles, Doubles), generate


@instruction
def any_nan(_: Any, lanes: Any) -> Any:
    """Say whether a lane is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        each = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        bits = builder.bitcast(each, ir.IntType(WIDTH))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(WIDTH), 0))

    return types.boolean(Doubles), generate


@instruction
def unless_alike(_: Any, lanes: Any, port: Any, truth: Any) -> Any:
    """Return the lanes, but 0 where `port` and `truth` are one infinity."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, port, truth = arguments
        endless = builder.fcmp_ordered("==", called(builder, "fabs", truth), filled(DOUBLE, inf))
        alike = builder.and_(endless, builder.fcmp_ordered("==", port, truth))
        return builder.select(alike, filled(DOUBLE, 0.0), lanes)

    return Doubles(Doubles, Doubles, Doubles), generate


@instruction
def put_keys(_: Any, array: Any, place: Any, lanes: Any, shift: Any, first: Any, last: Any) -> Any:
    """Write the bits of each magnitude from `shift` on, less `first`, from 0 to `last`.

    They go to an array of uint16; an exponent and four bits behind it fit.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = address(context, builder, signature, arguments, I16)
        lanes, shift, first, last = arguments[2:]
        bits = builder.bitcast(called(builder, "fabs", lanes), vector(I64))
        first, limit = (spread(builder, builder.trunc(one, I16)) for one in (first, last))
        keys = builder.trunc(builder.lshr(bits, spread(builder, shift)), vector(I16))
        keys = builder.call(saturating(builder), [keys, first])
        keys = builder.select(builder.icmp_unsigned("<", keys, limit), keys, limit)
        builder.store(keys, where, align=2)
        return context.get_dummy_value()

    return types.void(array, types.intp, Doubles, types.intp, types.intp, types.intp), generate


@instruction
def put(_: Any, array: Any, place: Any, lanes: Any) -> Any:
    """Write sixteen numbers to an array of float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = address(context, builder, signature, arguments, DOUBLE)
        builder.store(arguments[2], where, align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, Doubles), generate


def called(builder: Any, name: str, *values: Any) -> Any:
    """Call one of LLVM's functions of vectors of float64."""
    kind = ir.FunctionType(vector(DOUBLE), [vector(DOUBLE)] * len(values))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f64")
    return builder.call(function, values)


def saturating(builder: Any) -> Any:
    """Return LLVM's difference of whole numbers that is at least 0."""
    kind = ir.FunctionType(vector(I16), [vector(I16)] * 2)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.usub.sat.v{WIDTH}i16")


@inlined
def count(counts, keys, place):
    """Count sixteen keys, in four rows in turn: a count waits for the one before."""
    for lane in range(0, WIDTH, 4):
        counts[0, keys[place + lane]] += 1
        counts[1, keys[place + lane + 1]] += 1
        counts[2, keys[place + lane + 2]] += 1
        counts[3, keys[place + lane + 3]] += 1


def look(port, truth, lanes, counts, keys, shift, before):
    """Add to the sums of squares of difference, truth and port, and of truth * port, sixteen
    each, keep the sixteen largest differences, and count differences by their upper bits: in
    the first row of `counts`, all of which is zero before or came from here.

    An infinity on both sides is taken for 0 on both. Both tensors fill blocks as long as `keys`.
    """
    for block in range(0, port.size, keys.size):
        off_off, t_t, p_p, t_p = no_doubles(), no_doubles(), no_doubles(), no_doubles()
        most = doubles(lanes, 4 * WIDTH)
        for place in range(0, keys.size, WIDTH):
            p, t = doubles(port, block + place), doubles(truth, block + place)
            off = minus(p, t)
            if any_nan(off):
                off, p, t = unless_alike(off, p, t), unless_alike(p, p, t), unless_alike(t, p, t)
            off_off = and_product(off_off, off, off)
            t_t, p_p = and_product(t_t, t, t), and_product(p_p, p, p)
            t_p = and_product(t_p, t, p)
            most = or_larger(most, off)
            put_keys(keys, place, off, shift, before, counts.shape[1] - 1)
            if place >= BEHIND:
                count(counts, keys, place - BEHIND)
        put(lanes, 0, plus(doubles(lanes, 0), off_off))
        put(lanes, WIDTH, plus(doubles(lanes, WIDTH), t_t))
        put(lanes, 2 * WIDTH, plus(doubles(lanes, 2 * WIDTH), p_p))
        put(lanes, 3 * WIDTH, plus(doubles(lanes, 3 * WIDTH), t_p))
        put(lanes, 4 * WIDTH, most)
        for place in range(keys.size - BEHIND, keys.size, WIDTH):
            count(counts, keys, place)
    for place in range(counts.shape[1]):
        counts[0, place] += counts[1, place] + counts[2, place] + counts[3, place]
        counts[1, place] = counts[2, place] = counts[3, place] = 0
