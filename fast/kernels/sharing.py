"""How a piece of work is handed to other threads, and what one of them does about it.

A job is the address of machine code and of its arguments. Its places are cut into pieces, which
whoever is free takes one after another: a thread that comes late finds less to do or nothing, and
is not waited for. So a core that is busy with other work delays nobody for longer than a piece.

`board` is where jobs are posted: int64, each number on a line of the cache of its own. `LEFT` is
written last and taken from by exchange, so whoever read of an older job gets no piece.
"""

import platform
import time
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array

from lockstep.fast.kernels.lanes import instruction
from lockstep.fast.kernels.parts import inlined, linked

LINE = 16  # numbers, of 8 bytes: two lines of the cache, since neighbours are fetched in pairs
# What stands where: pieces that nobody took yet, with the number of the job above bit 32; pieces
# that are done; and the job.
LEFT, DONE, CODE, ARGUMENTS, PIECES, PLACES = (LINE * n for n in range(6))
NUMBERS, LOW = (1 << 31) - 1, (1 << 32) - 1
KEPT = 510  # numbers, of 8 bytes, that a kernel's arguments take at most
PATIENCE = 2000  # looks at a piece that another thread is at, before it is given the core
ROUND = 64  # looks for a job, after which another thread may have the core
I64, POINTER = ir.IntType(64), ir.IntType(8).as_pointer()
BODIES: dict[str, Any] = {}  # the functions of kernels, by their names
BEFORE: dict[str, Any] = {}  # what is done once before the work of some, with the first arguments


def board() -> np.ndarray:
    return np.zeros(6 * LINE, np.int64)


def at(context: Any, builder: Any, array: Any, index: Any) -> Any:
    """Return the pointer to an element of an array of int64."""
    kind = types.Array(types.int64, 1, "C")
    return builder.gep(make_array(kind)(context, builder, array).data, [index])


@instruction
def read(_: Any, board: Any, index: Any) -> Any:
    """Read a number that another thread may be writing; what it wrote before is seen too."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(at(context, builder, *arguments), "acquire", 8)

    return types.int64(board, types.intp), generate


@instruction
def write(_: Any, board: Any, index: Any, value: Any) -> Any:
    """Write a number that another thread may be reading, after all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, value = arguments
        builder.store_atomic(value, at(context, builder, array, index), "release", 8)
        return context.get_dummy_value()

    return types.void(board, types.intp, types.int64), generate


@instruction
def count(_: Any, board: Any, index: Any, more: Any) -> Any:
    """Add to a number at once, whoever else does."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, more = arguments
        builder.atomic_rmw("add", at(context, builder, array, index), more, "acq_rel")
        return context.get_dummy_value()

    return types.void(board, types.intp, types.int64), generate


@instruction
def exchanged(_: Any, board: Any, index: Any, known: Any, new: Any) -> Any:
    """Replace a number if it still is what is known of it; return whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, known, new = arguments
        place = at(context, builder, array, index)
        both = builder.cmpxchg(place, known, new, "acq_rel", "acquire")
        return builder.extract_value(both, 1)

    return types.boolean(board, types.intp, types.int64, types.int64), generate


@instruction
def pause(_: Any) -> Any:
    """Tell the core that it waits for another one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@instruction
def step_aside(_: Any) -> Any:
    """Let another thread have the core."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@instruction
def clock(_: Any) -> Any:
    """Return nanoseconds of `time.CLOCK_MONOTONIC`, which all processors have."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        both = ir.LiteralStructType([I64, I64])  # seconds, and nanoseconds of the next
        place = cgutils.alloca_once(builder, both)
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), both.as_pointer()])
        read = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(read, [ir.Constant(ir.IntType(32), time.CLOCK_MONOTONIC), place])
        seconds, rest = (builder.extract_value(builder.load(place), part) for part in (0, 1))
        return builder.add(builder.mul(seconds, ir.Constant(I64, 10**9)), rest)

    return types.int64(), generate


@instruction
def job(_: Any, work: Any, arguments: Any) -> Any:
    """Return the addresses of a kernel's code for places `first` to `last`, and of its arguments.

    The arguments lie in the frame of the caller, which must not return before all is done. It holds
    on to the arrays, so what Numba counts of these is left out: each call of a kernel would count,
    and cores that count the same array wait for each other.
    """
    given = [kind for kind in arguments.types if kind != types.none]
    signature = types.void(types.intp, *given)

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        borrowed = uncounted(context, builder, arguments, values[1])
        packed = cgutils.alloca_once_value(builder, borrowed)
        code = piece(context, builder, BODIES[work.format], signature, values[1].type)
        pair = [builder.ptrtoint(code, I64), builder.ptrtoint(packed, I64)]
        return context.make_tuple(builder, result, pair)

    result = types.UniTuple(types.int64, 2)
    return result(work, arguments), generate


@instruction
def prepared(_: Any, work: Any, arguments: Any) -> Any:
    """Return the address of what a kernel needs to be done once, 0 if there is no such thing.

    It is called as a kernel's code is.
    """
    body = BEFORE.get(work.format)

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        if body is None:
            return ir.Constant(I64, 0)
        count = body.__code__.co_argcount
        signature = types.void(*arguments.types[:count])
        return builder.ptrtoint(once(context, builder, body, signature, values[1].type), I64)

    return types.int64(work, arguments), generate


def once(context: Any, builder: Any, body: Any, signature: Any, packed: Any) -> Any:
    """Make the function `void (arguments, first, last)` that calls a body with the first ones."""
    compiled = linked(context, body, signature)
    inner, function = begun(builder, f"{builder.function.name}.once")
    values = inner.load(inner.bitcast(function.args[0], packed.as_pointer()))
    each = [inner.extract_value(values, index) for index in range(len(signature.args))]
    context.call_internal_no_propagate(inner, compiled, signature, each)
    inner.ret_void()
    return function


def begun(builder: Any, name: str) -> tuple[Any, Any]:
    """Begin a function `void (arguments, first, last)` beside another one."""
    kind = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64])
    function = ir.Function(builder.module, kind, name)
    function.linkage = "internal"
    return ir.IRBuilder(function.append_basic_block()), function


def piece(context: Any, builder: Any, body: Any, signature: Any, packed: Any) -> Any:
    """Make the function `void (arguments, first, last)` that calls a body at each of the places."""
    compiled = linked(context, body, signature)
    inner, function = begun(builder, f"{builder.function.name}.piece")
    arguments, first, last = function.args
    values = inner.load(inner.bitcast(arguments, packed.as_pointer()))
    each = [inner.extract_value(values, index) for index in range(len(signature.args) - 1)]
    with cgutils.for_range_slice(inner, first, last, ir.Constant(I64, 1)) as (place, _):
        context.call_internal_no_propagate(inner, compiled, signature, [place, *each])
    inner.ret_void()
    return function


@instruction
def call(_: Any, code: Any, arguments: Any, first: Any, last: Any) -> Any:
    """Call a function that `job` gave the address of."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code, arguments, first, last = values
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64])
        function = builder.inttoptr(code, kind.as_pointer())
        builder.call(function, [builder.inttoptr(arguments, POINTER), first, last])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@inlined
def take(board, ticket):
    """Do a piece of the job that stood in `LEFT`, unless others took it meanwhile."""
    left = ticket & LOW
    code, arguments = read(board, CODE), read(board, ARGUMENTS)
    pieces, places = read(board, PIECES), read(board, PLACES)
    if exchanged(board, LEFT, ticket, ticket - 1):
        index = pieces - left
        call(code, arguments, places * index // pieces, places * (index + 1) // pieces)
        count(board, DONE, 1)


@inlined
def shared(board, code, arguments, pieces, places):
    """Post a job, work at it, and wait until all pieces are done."""
    number = ((read(board, LEFT) >> 32) + 1) & NUMBERS
    write(board, CODE, code)
    write(board, ARGUMENTS, arguments)
    write(board, PIECES, pieces)
    write(board, PLACES, places)
    write(board, DONE, 0)
    write(board, LEFT, number << 32 | pieces)
    ticket = read(board, LEFT)
    while ticket & LOW:
        take(board, ticket)
        ticket = read(board, LEFT)
    looked = 0
    while read(board, DONE) < pieces:
        looked += 1
        if looked < PATIENCE:
            pause()
        else:
            step_aside()


@instruction
def keep(_: Any, arguments: Any, room: Any) -> Any:
    """Write a kernel's arguments to an array of `KEPT` int64s, for `play`.

    Whoever keeps them holds on to the arrays: what Numba counts of these is left out.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        value = uncounted(context, builder, arguments, values[0])
        size = context.get_abi_sizeof(value.type)
        if size > 8 * KEPT:
            raise ValueError(f"arguments of a kernel take {size} bytes, more than {8 * KEPT}")
        start = at(context, builder, values[1], ir.Constant(I64, 0))
        builder.store(value, builder.bitcast(start, value.type.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(arguments, room), generate


def uncounted(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return an array, or all in a tuple, without the counts of who uses them."""
    if isinstance(kind, types.Array):
        array = make_array(kind)(context, builder, value)
        array.meminfo, array.parent = (
            cgutils.get_null_value(one.type) for one in (array.meminfo, array.parent)
        )
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        parts: Any = kind
        for index, one in enumerate(parts.types):
            part = uncounted(context, builder, one, builder.extract_value(value, index))
            value = builder.insert_value(value, part, index)
    return value


@inlined
def do(board, first, code, arguments, pieces, places):
    """Do a kernel's work at all places: in pieces that are shared, or here if there is one."""
    if first:
        call(first, arguments, 0, 1)
    if pieces == 1:
        call(code, arguments, 0, places)
    else:
        shared(board, code, arguments, pieces, places)


def run(work, board, pieces, places, a, b, c, d, e, f, g, h):
    """Do a kernel's work, or write to the board what `play` needs of it if there are no pieces.

    The arguments of the kernel come last, filled up with None. Numba is slow to see what a tuple of
    any length holds.
    """
    first = prepared(work, (a, b, c, d, e, f, g, h))
    code, packed = job(work, (a, b, c, d, e, f, g, h))
    if pieces == 0:
        write(board, KEPT, first)
        write(board, KEPT + 1, code)
        keep((a, b, c, d, e, f, g, h), board)
    else:
        do(board, first, code, packed, pieces, places)


def play(board, jobs, most):
    """Do the work of kernels one after another, those that are shared in at most so many pieces.

    A row of `jobs` has the addresses that `do` takes, whether it is shared, and its places.
    """
    for index in range(len(jobs)):
        first, code, arguments = jobs[index, 0], jobs[index, 1], jobs[index, 2]
        places = jobs[index, 4]
        pieces = min(places, most) if jobs[index, 3] else 1
        do(board, first, code, arguments, pieces, places)


def serve(board, wait):
    """Help with whatever is posted, until nothing was for so many nanoseconds.

    Another thread that wants the core, such as one of BLAS, gets it in between: its time does not
    count.
    """
    waited, looks, since = 0, 0, clock()
    while waited < wait:
        ticket = read(board, LEFT)
        if ticket & LOW:
            take(board, ticket)
            waited, looks, since = 0, 0, clock()
        elif looks < ROUND:
            looks += 1
            pause()
        else:
            waited += clock() - since
            step_aside()
            looks, since = 0, clock()
