"""The table of docs/caches.md is what is measured: bytes exactly, errors as far as they repeat."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference

ROOT = Path(__file__).parents[3]
ROW = re.compile(
    r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) % \|$", re.M
)


def test_the_table_is_what_is_measured():
    shown = {row[0]: [float(figure) for figure in row[1:]] for row in ROW.findall(page())}
    measured = list(runpy.run_path(str(ROOT / "docs/measure_caches.py"))["rows"]())
    assert list(shown) == [kind for kind, *_ in measured]
    for kind, held, errors, same in measured:
        assert round(held[0]) == shown[kind][0]
        assert held[1] == held[2] and round(held[1]) == shown[kind][1]
        for error, figure in zip(errors, shown[kind][2:5], strict=True):
            # What loses nothing differs by the order of sums, which a machine may choose.
            assert error < 5e-6 if figure < 5e-6 else error == pytest.approx(figure, rel=0.2), kind
        assert 100 * same == pytest.approx(shown[kind][5], abs=2)


def page() -> str:
    return (ROOT / "docs/caches.md").read_text(encoding="utf-8")


def test_the_bytes_of_the_sliding_model():
    """By hand: four layers of 512 bytes a token; two of them hold 16 tokens of 256."""
    model = reference.load(ROOT / "parity/demo/gemma4")
    tokens = np.arange(1, 257)[None]
    for kind, held in (("concatenating", 4 * 256 * 512), ("sliding", 2 * (256 + 16) * 512)):
        cache = model.make_cache(kind)
        model.forward(tokens[:, :255], cache=cache)
        model.forward(tokens[:, 255:], cache=cache)
        assert cache.nbytes == held and f"{held:,}" in page()
