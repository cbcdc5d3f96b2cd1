"""Each operation on each backend, timed by `make bench`; else some are run once, and compared.

No time decides anything. By the reference in float64, so that what is timed is right.
"""

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from lockstep.parity.conformance.backends.ours import to_mlx
from lockstep.reference import ops as reference
from tests.benchmarks.cases import CASES, PROMPT, Case
from tests.ops_backends import BACKENDS, Backend, to_numpy
from tests.sampled import sampled
from tests.tolerances import assert_close


@sampled(8)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.name)
@pytest.mark.parametrize("tokens", [PROMPT, 1], ids=["prompt", "token"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operation(benchmark, case, tokens, backend):
    benchmark.group = f"{case.name}, {tokens} tokens" if tokens > 1 else f"{case.name}, 1 token"
    args, options = case.given(tokens)
    found = benchmark(prepared(backend, case, args, options))
    exact = getattr(reference, case.op)(*of_dtype(args, np.float64), **options)
    assert_close(to_numpy(found), exact, kind=case.kind, backend=backend)


def prepared(backend: Backend, case: Case, args: tuple, options: dict[str, Any]):
    """Return what is timed: the operation on arrays that are where it computes, and its end."""
    op, args = getattr(backend.ops, case.op), of_dtype(args, np.float32, backend)
    if backend.name != "mlx":
        return partial(op, *args, **options)
    with mx.stream(mx.cpu):
        args = tuple(map(to_mlx, args))

    def run() -> mx.array:
        with mx.stream(mx.cpu):
            result = op(*args, **options)
            mx.eval(result)
        return result

    return run


def of_dtype(args: tuple, dtype: Any, backend: Backend = BACKENDS[0]) -> tuple:
    """Give arrays of float32 that type, and make a mask of positions as this namespace has it.

    Frequencies are float64 everywhere.
    """
    return tuple(
        backend.ops.causal_mask(*one, window=None) if isinstance(one, tuple)
        else one.astype(dtype) if isinstance(one, np.ndarray) and one.dtype == np.float32 else one
        for one in args
    )  # fmt: skip
