"""How fast one core multiplies by a stored matrix, by format.

    python -m lockstep.parity.bench.products

What is counted is the time of this process on one core, so other work on the machine counts little.
Figures are of one machine; the ratios say what reading codes directly is worth there.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

ROWS, COLUMNS, MANY, REPEATS = 4096, 1024, 64, 9
AFFINE = ((2, 64), (3, 64), (4, 64), (5, 64), (6, 64), (8, 64))
BLOCKED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


# What tells each library to keep to one thread. They read it when they are loaded.
ONE_THREAD = dict.fromkeys(
    ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


def main() -> int:
    if ONE_THREAD.items() <= os.environ.items():
        table()
        return 0
    command = [sys.executable, "-m", "lockstep.parity.bench.products"]
    return subprocess.run(command, env=os.environ | ONE_THREAD).returncode


def table() -> None:
    print(f"{'':12}   one token         {MANY} tokens")
    print(f"{'':12}   Gweights/s ratio  GFLOP/s    ratio")
    for name, weight in matrices(np.random.default_rng(0)):
        one, many = (compared(weight, tokens) for tokens in (1, MANY))
        size = ROWS * COLUMNS
        print(
            f"{name:12}   {size / one[0] / 1e9:10.1f} {one[1] / one[0]:5.1f}"
            f"  {2 * MANY * size / many[0] / 1e9:10.0f} {many[1] / many[0]:5.1f}"
        )


def matrices(rng: Any) -> Iterator[tuple[str, Any]]:
    """Yield random matrices: floats, MLX's packed rows, GGUF's blocks."""
    import ml_dtypes

    dense = rng.standard_normal((ROWS, COLUMNS), np.float32)
    for dtype in (np.float32, ml_dtypes.bfloat16, np.float16):
        yield np.dtype(dtype).name, dense.astype(dtype)
    for bits, group in AFFINE:
        packed = rng.integers(0, 2**32, (ROWS, COLUMNS * bits // 32), np.uint32)
        scales, offsets = rng.random((2, ROWS, COLUMNS // group), np.float32)
        yield f"MLX {bits} bits", QuantizedTensor(packed, scales, offsets, bits, group, "affine")
    for name in BLOCKED:
        weights, size = BLOCKS[name]
        blocks = rng.integers(0, 256, (ROWS, COLUMNS // weights, size), np.uint8)
        blocks[..., [1, 3, -1]] &= 63  # no scale, wherever it lies, is infinite
        yield name, BlockTensor(blocks.reshape(ROWS, -1), name)


def compared(weight: Any, tokens: int) -> tuple[float, float]:
    """Return the seconds that a product takes in machine code, and in NumPy alone."""
    from lockstep.fast import kernels
    from lockstep.fast.cpu import linear

    x = np.random.default_rng(1).standard_normal((tokens, COLUMNS), np.float32)
    found = kernels.available
    try:
        compiled = median(lambda: linear(x, weight, None))
        kernels.available = lambda: False
        return compiled, median(lambda: linear(x, weight, None))
    finally:
        kernels.available = found


def median(call: Callable[[], Any]) -> float:
    call()  # compiles
    took = []
    for _ in range(REPEATS):
        began = time.thread_time()
        call()
        took.append(time.thread_time() - began)
    return float(np.median(took))


if __name__ == "__main__":
    sys.exit(main())
