"""Every operation is tested on every backend: what runs nowhere cannot fail. By law."""

import ast
from pathlib import Path

import pytest

from lockstep.reference import ops as reference_ops
from tests.ops_backends import BACKENDS, PRECISIONS

ROOT = Path(__file__).parents[1]
FIXTURES = {"backend", "precision"}


def test_every_namespace_is_a_backend():
    """A folder that has a linear product is a namespace of operations."""
    folders = {
        ".".join(["lockstep", *path.relative_to(ROOT).parent.parts])
        for package in ("reference", "fast", "parity")
        for path in (ROOT / package).rglob("linear.py")
    }
    assert {backend.ops.__name__ for backend in BACKENDS} == folders


def test_every_backend_has_its_dtypes():
    """Whoever is asked for is handed out, in each dtype."""
    found = [(backend.name, dtype.name) for backend, dtype in PRECISIONS]
    assert found == [(backend.name, name) for backend in BACKENDS for name in backend.dtypes]
    assert all(backend.dtypes for backend in BACKENDS)


@pytest.mark.parametrize("op", reference_ops.__all__)
def test_every_operation_is_called_on_every_backend(op):
    """Its file has tests that take a fixture of all backends, and they call the operation."""
    tree = ast.parse((ROOT / f"tests/reference/ops/test_{op}.py").read_text(encoding="utf-8"))
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    tests = [node for node in tests if FIXTURES & {argument.arg for argument in node.args.args}]
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert len(tests) >= 2
    assert op in called


def test_results_come_back_as_they_are():
    """By hand: bfloat16 is copied by its bits, both ways."""
    from tests.ops_backends import DTYPES, to_mlx, to_numpy
    from tests.tolerances import assert_same_bits

    for dtype in DTYPES.values():
        if dtype.itemsize < 8:
            values = reference_ops.silu(reference_ops.rope_frequencies(theta=7.0, dims=16))
            assert_same_bits(to_numpy(to_mlx(values.astype(dtype))), values.astype(dtype))
