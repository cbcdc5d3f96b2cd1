"""Measure how mixtures of experts in half precision are judged without their routers' logits.

Run it as `python -m tests.peers.new_architectures.measure_mixtures [--tokens 40] [--seeds 12]`; it
takes about ten minutes, and prints a line for each dump that is judged wrong, or, of a planted bug,
right. At last it counts. A longer prompt has more near choices.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lockstep import parity
from tests.peers.new_architectures.builds import loaded, make
from tests.peers.new_architectures.runs import only, wrong
from tests.peers.test_near_choices import BUGS, ROUTER_BUGS, SIZES, of_layers, of_logits, turned
from tests.witnesses import build

FIRST = 100  # seeds that no test has
GRAINS = {"layers": of_layers, "logits": of_logits}
DTYPES = ("bfloat16", "float16")


def dumps(model: Any, folder: Path, count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield how each kind of dump of a port is judged."""
    ids = torch.randint(0, 96, (1, count), generator=torch.Generator().manual_seed(seed))
    with parity.capture.torch(model) as dump, torch.no_grad():
        model(ids)
    for grain, keep in GRAINS.items():
        kept = only(dump, keep)
        yield grain, parity.diff(kept, kept, model=folder)


def right(home: Path, count: int, seeds: int) -> Iterator[tuple[str, str, Any]]:
    for seed in range(FIRST, FIRST + seeds):
        for name, sizes in SIZES.items():
            folder = make(name, home / f"{name}-{seed}", seed, **sizes)
            for dtype in DTYPES:
                kernels = {"experts_implementation": "grouped_mm"}
                model = loaded(folder, dtype, ("eager", "sdpa")[seed % 2], **kernels)
                for grain, result in dumps(model, folder, count, 5000 + seed):
                    yield f"right, {grain}", f"{name} {dtype} {seed}", result


def planted(home: Path, count: int) -> Iterator[tuple[str, str, Any]]:
    for name, sizes in SIZES.items():
        folder = make(name, home / f"{name}-bug", FIRST, **sizes)
        for dtype in DTYPES:
            for bug in (*BUGS, *ROUTER_BUGS):
                model = loaded(folder, dtype)
                bug(model)
                for grain, result in dumps(model, folder, count, 5000):
                    yield f"wrong in {dtype}, {grain}", f"{name} {bug.__name__}", result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=12)
    given, counts, others = parser.parse_args(), Counter(), Counter()
    build.settle()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for runs in (right(home, given.tokens, given.seeds), planted(home, given.tokens)):
            for kind, label, result in runs:
                bad = bool(wrong(result))
                counts[kind, bad] += 1
                others[kind] += turned(result) > 0
                if bad == kind.startswith("right"):
                    print(kind, label, wrong(result), result.conventions, flush=True)
    for kind in dict.fromkeys(kind for kind, _ in counts):
        found = f"{counts[kind, True]} judged wrong, {counts[kind, False]} right"
        print(f"{kind}: {found}; {others[kind]} with choices of the port's", flush=True)


if __name__ == "__main__":
    main()
