"""What llama.cpp rounds on purpose: conventions, which the model survives, and no bugs.

Its CPU kernels multiply a packed matrix with numbers packed alike, and read GELU from a table of
every float16 there is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes.util import find_library
from functools import cache, partial
from typing import Any

import numpy as np

from lockstep.parity.faults.activations import CUBE, SLOPE, Activation, activated
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.routers import rounded_through
from lockstep.parity.faults.tensors import MATRICES, dense
from lockstep.parity.graph import Call, Graph
from lockstep.reference.checkpoint.block_tensor import BLOCKS as BLOCK_SIZES
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.checkpoint import StoredFormat
from lockstep.reference.ops.experts import weighted_experts
from lockstep.reference.ops.geglu import geglu
from lockstep.reference.ops.swiglu import swiglu

GATED: dict[str, Any] = {"experts": lambda ops: swiglu, "geglu_experts": lambda ops: geglu}
WITH_LEAST = ("Q4_1", "Q5_1")  # a block has its least value, and the sums of codes are rounded too
BY_32 = ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "MXFP4")
BY_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
ENDS = 10.0  # beyond them the table is not asked
FLOAT32, FLOAT16 = np.float32, np.float16
Change = Callable[[Any, np.ndarray], np.ndarray]
Values = Callable[[np.ndarray], np.ndarray]


def blocks_of_32(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the blocks of each row (..., blocks, 32) in float32, and the largest size in each."""
    blocks = x.astype(FLOAT32).reshape(*x.shape[:-1], -1, 32)
    return blocks, np.abs(blocks).max(axis=-1, keepdims=True)


def in_blocks_of_32(ops: Any, x: np.ndarray, held: Any = FLOAT16) -> np.ndarray:
    """Pack as Q8_0, in ggml's arithmetic: the codes by a float32 step, then the step as float16, or
    as it is `held` by others.
    """
    blocks, largest = blocks_of_32(x)
    with np.errstate(all="ignore"):
        codes = np.rint(blocks * np.where(largest == 0, FLOAT32(0), FLOAT32(127) / largest))
        steps = (largest / FLOAT32(127)).astype(held).astype(x.dtype)
    return (codes.astype(x.dtype) * steps).reshape(x.shape)


def by_float16_steps(ops: Any, x: np.ndarray) -> np.ndarray:
    """Pack as Q8_0, the codes by the step as float16 has it, as a port may that is no ggml."""
    blocks, largest = blocks_of_32(x)
    with np.errstate(all="ignore"):
        steps = (largest / FLOAT32(127)).astype(FLOAT16).astype(FLOAT32)
        codes = np.rint(np.where(steps == 0, FLOAT32(0), blocks / steps)).clip(-128, 127)
    return (codes * steps).astype(x.dtype).reshape(x.shape)


def sums_of_32(x: np.ndarray) -> np.ndarray:
    """Return the sum of what each block is packed to, (..., blocks), as Q8_1 keeps it: float16."""
    blocks, largest = blocks_of_32(x)
    with np.errstate(all="ignore"):
        codes = np.rint(blocks * np.where(largest == 0, FLOAT32(0), FLOAT32(127) / largest))
        sums = largest / FLOAT32(127) * codes.sum(axis=-1, keepdims=True)
        return sums.astype(FLOAT16).astype(x.dtype)[..., 0]


def least_values(weight: BlockTensor) -> np.ndarray:
    """Return the least value of each block, (rows, blocks)."""
    size = BLOCK_SIZES[weight.format][1]
    blocks = weight.blocks.reshape(*weight.blocks.shape[:-1], -1, size)
    return np.ascontiguousarray(blocks[..., 2:4]).view("<f2")[..., 0].astype(FLOAT32)


def by_rounded_sums(ops: Any, x: np.ndarray, weight: Any, bias: Any) -> np.ndarray:
    """Multiply what is above the least values with x, and the least values with its sums.

    Both are large and nearly cancel, so that they are summed apart.
    """
    if not isinstance(weight, BlockTensor):  # another bug made it dense
        return ops.linear(in_blocks_of_32(ops, x), weight, bias)
    least = least_values(weight)
    above = dense(ops, weight) - np.repeat(least, 32, axis=-1)
    return ops.add(
        ops.linear(in_blocks_of_32(ops, x), above, bias), ops.linear(sums_of_32(x), least, None)
    )


def in_blocks_of_256(ops: Any, x: np.ndarray) -> np.ndarray:
    """Pack as Q8_K: the largest of a block, whatever its sign, is -127 or -128 steps."""
    blocks = x.astype(FLOAT32).reshape(*x.shape[:-1], -1, 256)
    where = np.abs(blocks).argmax(axis=-1, keepdims=True)
    largest = np.take_along_axis(blocks, where, axis=-1)
    with np.errstate(all="ignore"):
        scale = np.where(largest == 0, FLOAT32(0), FLOAT32(-127) / largest)
        codes = np.minimum(np.rint(blocks * scale), FLOAT32(127))
        steps = np.where(scale == 0, FLOAT32(0), FLOAT32(1) / scale).astype(x.dtype)
    return (codes.astype(x.dtype) * steps).reshape(x.shape)


OTHER_STEPS = {
    "steps in float32": partial(in_blocks_of_32, held=FLOAT32),
    "by steps in float16": by_float16_steps,
}
BLOCKS = ((32, in_blocks_of_32, BY_32), (256, in_blocks_of_256, BY_256))


def rounding_before(
    change: Change,
    *kinds: str,
    size: int = 1,
    gated: dict[str, Any] = GATED,
    product: Callable[..., Any] | None = None,
) -> Rewrite:
    """Change what is multiplied with a matrix of some kinds, in the experts too.

    `gated` are the operations that are experts, and what each has between its products. `product`
    multiplies where a change of what goes in does not say it all.
    """

    def fits(stored: StoredFormat | None) -> bool:
        if stored is None or stored.shape[-1] % size:
            return False
        return (stored.mode or stored.dtype) in kinds

    def linear(ops: Any) -> Any:
        if product is not None:
            return partial(product, ops)
        return lambda x, weight, bias: ops.linear(change(ops, x), weight, bias)

    def experts(gated: Any) -> Any:
        def wrong(ops: Any, x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
            return weighted_experts(
                x, routing, *stacks, per_token=per_token, linear=linear(ops), gated=gated(ops)
            )

        return wrong

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if call.op not in gated and (call.op != "linear" or gated is not GATED):
            return None
        names = [call.tensor(index) or "" for index in MATRICES[call.op]]
        if not all(fits(graph.stored.get(name)) for name in names):
            return None
        if call.op == "linear":
            return call.replaced(product) if product else call.with_changed(0, change)
        return call.replaced(experts(gated[call.op]))

    return rewritten


def tanh_of_the_machine(x: np.ndarray) -> np.ndarray:
    """The C library's tanhf, which ggml calls: NumPy's own differs from it in the last bit."""
    try:
        tanhf = ctypes.CDLL(find_library("m")).tanhf
    except (OSError, AttributeError):
        return np.tanh(x)
    tanhf.restype, tanhf.argtypes = ctypes.c_float, [ctypes.c_float]
    return np.array([tanhf(one) for one in x.tolist()], FLOAT32)


def tanh_rounded_once(x: np.ndarray) -> np.ndarray:
    return np.tanh(x.astype(np.float64)).astype(FLOAT32)


def fused(cubed: np.ndarray, x: np.ndarray) -> np.ndarray:
    """1 + cubed x, rounded once, as a compiler makes it that has such an instruction."""
    return (1 + cubed.astype(np.float64) * x).astype(FLOAT32)


def twice_rounded(cubed: np.ndarray, x: np.ndarray) -> np.ndarray:
    return 1 + cubed * x


@cache
def table(tanh: Values, more: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """GELU of every float16, in float16, by ggml's formula in float32."""
    with np.errstate(all="ignore"):
        x = np.arange(1 << 16, dtype=np.uint16).view(FLOAT16).astype(FLOAT32)
        bent = FLOAT32(SLOPE) * x * more(FLOAT32(CUBE) * x, x)
        return (FLOAT32(0.5) * x * (1 + tanh(bent))).astype(FLOAT16)


def from_a_table(tanh: Values, more: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Activation:
    """Return the GELU that is looked up by x in float16; beyond 10 it is x, or nothing."""

    def activation(ops: Any, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            keys = x.astype(FLOAT16).view(np.uint16)
        read = table(tanh, more)[keys].astype(x.dtype)
        return np.where(x <= -ENDS, x.dtype.type(0), np.where(x >= ENDS, x, read))

    return activation


# They differ in few places, by one step; which it is depends on the machine that ran.
TABLES = {
    "": from_a_table(tanh_of_the_machine, fused),
    "no fused products": from_a_table(tanh_of_the_machine, twice_rounded),
    "tanh to half a bit": from_a_table(tanh_rounded_once, fused),
    "NumPy's tanh": from_a_table(np.tanh, fused),
}


def gated_by(gelu: Activation) -> Any:
    return lambda ops: lambda gate, up: ops.multiply(gelu(ops, gate), up)


def both_halves(call: Call, graph: Graph) -> Call | None:
    """Round both sides of attention's products to float16: the cache holds it."""
    if call.op not in ("attention_scores", "attention_context"):
        return None
    change = rounded_through("float16")
    return call.with_changed(0, change).with_changed(1, change)


FAULTS = (
    Fault(
        id="activations-in-8-bits",
        wrong="x packed to 8 bits, 32 or 256 of it to a scale, before a product with packed rows",
        right="y = W x in the dtype that is computed in",
        symptom="logits off by some hundredths of their deviation, at random",
        where="the first packed projection",
        fix="none is needed: llama.cpp's kernels, and others, multiply whole numbers",
        convention=True,
        variants={
            f"{size} to a scale": rounding_before(change, *kinds, size=size)
            for size, change, kinds in BLOCKS
        }
        | {
            "32 to a scale, sums as float16": rounding_before(
                in_blocks_of_32, *WITH_LEAST, size=32, product=by_rounded_sums
            )
        }
        | {
            f"32 to a scale, {words}": rounding_before(change, *BY_32, *WITH_LEAST, size=32)
            for words, change in OTHER_STEPS.items()
        },
    ),
    Fault(
        id="activations-in-the-weights-half",
        wrong="x rounded to the half precision of the matrix before a product with it",
        right="y = W x in the dtype that is computed in",
        symptom="noise of 1e-3 (float16) or 1e-2 (bfloat16)",
        where="the first projection in half precision",
        fix="none is needed: llama.cpp multiplies halves and sums in float32",
        convention=True,
        variants={
            "float16": rounding_before(rounded_through("float16"), "F16"),
            "bfloat16": rounding_before(rounded_through("bfloat16"), "BF16"),
        },
    ),
    Fault(
        id="attention-in-float16",
        wrong="queries, keys, probabilities and values rounded to float16 before their products",
        right="attention in the dtype that is computed in",
        symptom="noise of 1e-3 from attention alone",
        where="self_attn.scores",
        fix="none is needed: it is llama.cpp's usual cache; type_k and type_v choose another",
        convention=True,
        variants={"": both_halves},
    ),
    Fault(
        id="gelu-from-a-table",
        wrong="GELU looked up by x in float16, and kept in float16",
        right="GELU in the dtype that is computed in",
        symptom="noise of 3e-4 from every MLP",
        where="mlp.act",
        fix="none is needed: ggml has a table of GELU for every float16",
        convention=True,
        variants={
            **{name: activated(gelu, "gelu_tanh") for name, gelu in TABLES.items()},
            **{
                f"in experts, beside {size} to a scale": rounding_before(
                    change, *kinds, size=size, gated={"geglu_experts": gated_by(TABLES[""])}
                )
                for size, change, kinds in BLOCKS
            },
        },
    ),
)
