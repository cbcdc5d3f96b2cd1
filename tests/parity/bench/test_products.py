"""The table of products: each format is really multiplied both ways."""

import numpy as np
import pytest

from lockstep.fast import kernels
from lockstep.parity.bench import products
from tests.sampled import sampled

FLOATS = ("float32", "bfloat16", "float16")
NAMES = (*FLOATS, *(f"MLX {bits} bits" for bits, _ in products.AFFINE), *products.BLOCKED)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(products, "ROWS", 8)
    monkeypatch.setattr(products, "COLUMNS", 256)
    monkeypatch.setattr(products, "REPEATS", 1)


def test_every_format_has_a_row(small, monkeypatch, capsys):
    monkeypatch.setattr(products, "compared", lambda weight, tokens: (1.0, 2.0))
    products.table()
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [*NAMES]


@sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_multiplied_by_one_token_and_by_many(small, name):
    weights = dict(products.matrices(np.random.default_rng(0)))
    for tokens in (1, products.MANY):
        assert min(products.compared(weights[name], tokens)) > 0


def test_afterwards_kernels_are_there_again(small):
    before = kernels.available
    _, weight = next(products.matrices(np.random.default_rng(0)))
    assert min(products.compared(weight, 2)) > 0
    assert kernels.available is before


def test_one_process_keeps_to_one_thread(monkeypatch):
    """By hand: the libraries read these when they are loaded, so another process is started."""
    asked = []

    class Done:
        returncode = 0

    monkeypatch.setattr(products.subprocess, "run", lambda *a, **k: asked.append(k["env"]) or Done)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert products.main() == 0
    assert asked[0]["OPENBLAS_NUM_THREADS"] == asked[0]["NUMBA_NUM_THREADS"] == "1"
