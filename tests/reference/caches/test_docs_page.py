"""What docs/caches.md says of steps and bytes. Its first table is held by tests/long."""

import re
import runpy
from pathlib import Path

import numpy as np

from lockstep import reference
from lockstep.reference.stores.kinds import QUANTISED

ROOT = Path(__file__).parents[3]
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
