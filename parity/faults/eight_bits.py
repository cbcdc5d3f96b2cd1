"""What engines keep in 8 bits or in NF4 that MODEL has in more: no bug, but told before all else.

Weights by row, by tile or by matrix, as vLLM, torchao, LLM.int8 and the FP8 checkpoints of Qwen3
and DeepSeek have them, or in bitsandbytes' NF4; activations by token, as W8A8 multiplies them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.llama_cpp import BY_32, BY_256, WITH_LEAST, rounding_before
from lockstep.parity.faults.other_quantisation import entry, repacked
from lockstep.parity.faults.scaled import A_MATRIX, fp8, fp8_as_it_is, int8, nf4
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS
from lockstep.reference.precision import dtype_named

EVERY = ("F32", "F16", "BF16", "affine", *MINIFLOATS, *WITH_LEAST, *BY_32, *BY_256)
BFLOAT16 = dtype_named("bfloat16")
ROW, MATRIX, TILE = "a row to a scale", "a matrix to a scale", "128 x 128 to a scale"


def by_token(change: Callable[[np.ndarray], np.ndarray]) -> Rewrite:
    """Round what goes into each product with a matrix, dense or packed, token by token."""

    def rounded(ops: Any, x: np.ndarray) -> np.ndarray:
        rows = change(x.reshape(-1, x.shape[-1]))
        return rows.reshape(x.shape).astype(x.dtype)

    return rounding_before(rounded, *EVERY)


FAULTS = (
    entry(
        "int8",
        "in whole numbers of 8 bits",
        {
            ROW: repacked(int8),
            f"{ROW} in bfloat16": repacked(partial(int8, held=BFLOAT16)),
            f"{ROW}, of 127.5 steps": repacked(partial(int8, steps=127.5)),
            f"{ROW}, divided by it": repacked(partial(int8, divided=True)),
            MATRIX: repacked(partial(int8, tile=A_MATRIX)),
        },
    ),
    entry(
        "fp8",
        "in float8 (e4m3)",
        {
            ROW: repacked(fp8),
            f"{ROW} in bfloat16": repacked(partial(fp8, held=BFLOAT16)),
            MATRIX: repacked(partial(fp8, tile=A_MATRIX)),
            TILE: repacked(partial(fp8, tile=(128, 128))),
            "without a scale": repacked(fp8_as_it_is),
        },
    ),
    entry("nf4", "packed as bitsandbytes' NF4", {"": repacked(nf4)}),
    Fault(
        id="activations-by-token",
        wrong="x rounded to 8 bits, a token to a scale, before a product with a matrix",
        right="y = W x in the dtype that is computed in",
        symptom="logits off by some hundredths of their deviation, at random",
        where="the first projection",
        fix="none is needed: it is what W8A8 does; compare with activations that are not quantised",
        convention=True,
        variants={
            "whole numbers": by_token(int8),
            "whole numbers, of 127.5 steps": by_token(partial(int8, steps=127.5)),
            "float8": by_token(fp8),
        },
    ),
)
