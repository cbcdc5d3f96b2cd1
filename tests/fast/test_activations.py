"""Activations of fewer bits: which products they change, by how much, and who refuses them."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.fast import cpu, load
from lockstep.fast.backends import activations, backend_named
from lockstep.fast.backends.activations import operations
from lockstep.fast.decoding import speculative
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.prompt_lookup import LookupDraft
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests.draws import normal, packed_matrix
from tests.ops_backends import DTYPES

DEMO = Path(__file__).parents[2] / "parity/demo/checkpoint"
HERE = activations.possible()
SCALES = DTYPES["bfloat16"]


def spread(found, right) -> float:
    return float(np.sqrt(np.mean((found - right) ** 2)) / right.std())


def test_by_default_nothing_is_rounded():
    assert operations("float32") is cpu
    assert backend_named("cpu", dtype="float32", device=None).ops is cpu


@pytest.mark.parametrize("name, least, most", [("int16", 1e-6, 1e-4), ("int8", 1e-3, 2e-2)])
def test_products_of_a_prompt_are_rounded(name, least, most):
    """By loop; of one token, and of floats, the bits are those of float32."""
    if not HERE:
        with pytest.raises(InputError, match="takes Numba and AVX-512 VNNI, or AVX2"):
            operations(name)
        return
    rounded = operations(name)
    weight, values = packed_matrix(0, 24, 256, bits=4, group=64, dtype=SCALES)
    x = normal(1, 2, 4, 256)
    assert least < spread(rounded.linear(x, weight, None), x @ values.T.astype(np.float32)) < most
    for some, matrix in ((x[:1, :1], weight), (x, normal(2, 8, 256))):
        np.testing.assert_array_equal(
            rounded.linear(some, matrix, None), cpu.linear(some, matrix, None)
        )


@pytest.mark.parametrize("name", ["experts", "geglu_experts"])
def test_experts_are_rounded_too(name):
    """By law: of eight tokens that all visit one expert, the result is off by some hundredths."""
    if not HERE:
        with pytest.raises(InputError, match="takes Numba and AVX-512 VNNI, or AVX2"):
            operations("int8")
        return
    x, routing = normal(0, 8, 64), np.eye(2, dtype=np.float32)[np.zeros(8, int)]
    packed = [packed_matrix(one, 64, 64, bits=4, group=64, dtype=SCALES)[0] for one in (1, 2, 3)]
    stacks = [[one, one] for one in packed]
    both = [getattr(ops, name)(x, routing, *stacks, per_token=1) for ops in (
        operations("int8"), cpu,
    )]  # fmt: skip
    assert 1e-3 < spread(*both) < 1e-1


def test_all_operations_are_there():
    names = operations("int8" if HERE else "float32")
    assert all(callable(getattr(names, name)) for name in cpu.__all__)


@pytest.mark.parametrize(
    "core, given",
    [
        ("activations: int4, but should be one of", {"backend": "cpu", "activations": "int4"}),
        ("activations: int8 is for the backend cpu", {"backend": "mlx", "activations": "int8"}),
    ],
)
def test_who_refuses_them(core, given):
    with pytest.raises(InputError, match=core):
        load(DEMO, **given)


@pytest.mark.parametrize("name", ["int16", "int8"])
def test_a_draft_does_not_go_with_them(name):
    """In Python as on the command line: what they round hangs on how many tokens a pass has."""
    model = load(DEMO, backend="cpu", activations=name if HERE else "float32")
    assert model.backend.activations == (name if HERE else "float32")
    model.backend.activations = name
    told = {"draft_tokens": 2, "max_tokens": 4, "stop": (), "sampling": SamplingOptions()}
    draft = LookupDraft(vocabulary=model.config.vocab_size, longest=3)
    with pytest.raises(InputError, match=f"activations in {name} do not go with it"):
        next(speculative.generate(model, [1, 2, 3], draft=draft, uniforms=iter(()), **told))


def test_without_numba_they_are_refused(monkeypatch):
    monkeypatch.setattr(activations, "possible", lambda: False)
    with pytest.raises(InputError, match="takes Numba and AVX-512 VNNI"):
        operations("int8")
