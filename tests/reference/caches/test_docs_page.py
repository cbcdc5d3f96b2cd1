"""The tables of docs/caches.md are what is measured: bytes exactly, errors as far as they repeat.

The rows of the first are measured in tests/long: that takes long.
"""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.reference.stores.kinds import KINDS, QUANTISED

ROOT = Path(__file__).parents[3]
ROW = re.compile(
    r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) % \|$", re.M
)


def check_rows(kinds: list[str]) -> None:
    shown = {row[0]: [float(figure) for figure in row[1:]] for row in ROW.findall(page())}
    assert list(shown) == [*KINDS]
    measured = list(runpy.run_path(str(ROOT / "docs/measure_caches.py"))["rows"](kinds))
    assert [kind for kind, *_ in measured] == kinds
    for kind, held, errors, same in measured:
        assert round(held[0]) == shown[kind][0]
        assert held[1] == held[2] and round(held[1]) == shown[kind][1]
        for error, figure in zip(errors, shown[kind][2:5], strict=True):
            # What loses nothing differs by the order of sums, which a machine may choose.
            assert error < 5e-6 if figure < 5e-6 else error == pytest.approx(figure, rel=0.2), kind
        assert 100 * same == pytest.approx(shown[kind][5], abs=2)


STEP = re.compile(r"^\| `([\w-]+)` " + r"\| ([\d.]+) " * 6 + r"\|$", re.M)


def test_the_steps_are_measured_as_the_page_says():
    """By hand: each kind of codes has its line, on two backends behind three histories.

    Times are not held to figures, since other work may run; the script that makes them runs here.
    """
    shown = {row[0]: [float(figure) for figure in row[1:]] for row in STEP.findall(page())}
    assert list(shown) == [*QUANTISED] and all(min(row) > 0 for row in shown.values())
    script = runpy.run_path(str(ROOT / "docs/measure_caches.py"))
    assert "`cpu`, 256 | `cpu`, 1024 | `cpu`, 4096 | `mlx`, 256" in page()
    assert script["LENGTHS"] == (256, 1024, 4096)
    made = script["ratios"]("mlx", 200, 1)
    assert made["growing"] == 1 and made.keys() == {"growing", *QUANTISED}


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
