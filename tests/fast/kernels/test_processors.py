"""Kernels on older processors than this one, as far as it can stand in for them.

One format of each way to cut codes out, and everything that is no product.
"""

import os
import subprocess
import sys

import pytest

from lockstep.fast.kernels.tile import has_feature

# What LLVM calls a processor, what it can do, the registers that it has, and those that it lacks.
# Where those are missing anyway, all other tests run on such a processor.
AVX2 = ("haswell", "+avx2,+fma,+f16c", "ymm", "zmm")
HERE = [AVX2] if has_feature("avx512f") else []

RUN = """
import sys
import numpy as np
from lockstep.fast import kernels
from lockstep.fast.cpu import attention, causal_mask, geglu, linear, rms_norm, rope, swiglu
from lockstep.fast.cpu.linear import multiplied
from lockstep.fast.kernels import kernel
from tests.draws import normal, packed_matrix
from tests.fast.kernels.test_product import block_matrix

kernel.SMALL = 2**62
weights = [block_matrix(name, 7, 256)[0] for name in ("Q4_0", "Q5_1", "Q6_K")]
weights += [packed_matrix(0, 7, 256, bits=bits, group=64)[0] for bits in (3, 4)]
weights += [normal(0, 7, 256, dtype=np.float16)]
queries, keys, values = normal(0, 1, 4, 1, 32), normal(1, 1, 2, 9, 32), normal(2, 1, 2, 9, 32)
mask = causal_mask(np.array([[8]]), np.arange(9)[None], window=None)


def results():
    whole = np.clip(np.rint(40 * normal(7, 6, 256)), -127, 127)
    whole[:, ::16] = 127  # so that one digit is exact
    for weight in weights:  # whose rows six tokens have too
        yield linear(normal(1, 1, 256), weight, None)
        yield linear(normal(6, 6, 256), weight, None)
        yield multiplied(whole, weight, None, digits=1)
    yield from (gate(normal(1, 3, 64) * 9, normal(2, 3, 64)) for gate in (swiglu, geglu))
    yield rms_norm(normal(3, 2, 64), normal(4, 64), eps=1e-6)
    yield rope(queries, np.array([[5]]), np.ones(16), factor=1.0)
    yield attention(queries, keys, values, mask, scale=0.3, masked_row="uniform")


found = list(results())
code = "".join(kernel._code["run"].inspect_asm().values())
assert sys.argv[1] in code and sys.argv[2] not in code
kernels.available = lambda: False
for one, plain in zip(found, results(), strict=True):
    np.testing.assert_allclose(one, plain, rtol=0, atol=2e-6 * np.abs(plain).max())
print(len(found), "results agree")
"""


@pytest.mark.parametrize("name, features, has, lacks", HERE or [(None,) * 4])
def test_kernels_compiled_for_an_older_processor(name, features, has, lacks, tmp_path):
    """By NumPy's way: the same results, from machine code that has no wider registers."""
    if name is None:  # the other tests ran on all that this machine is
        assert not has_feature("avx512f")
        return
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    environment |= {"XDG_CACHE_HOME": str(tmp_path)}
    run = [sys.executable, "-c", RUN, has, lacks]
    result = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("results agree\n")
