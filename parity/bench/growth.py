"""How cost grows with the prompt, the batch, the width and the depth, backend by backend.

    python -m lockstep.parity.bench.growth                             a small model, some minutes
    python -m lockstep.parity.bench.growth --width 1024 --layers 28 --vocabulary 151936 --rounds 5

Of each size it times a prompt and a step after it, all sizes and backends in turn, round after
round. Of each round a straight line is fitted to the logarithms, by least squares: its slope is the
exponent, of which the median and the spread over the rounds are shown. `last` is the slope between
the two largest sizes alone: what is quadratic shows there first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.bench.choice import OURS
from lockstep.parity.bench.engines import own
from lockstep.parity.bench.measure import prompt_of
from lockstep.parity.bench.shape import resized, write_shape
from lockstep.reference.checkpoint.errors import InputError, show

PHASES = ("prefill", "step")
STEPS = 3  # after each prompt, of which the quickest counts
SCORES = 1 << 26  # numbers of a layer's scores that the reference is asked for: more take long


@dataclass(frozen=True)
class Point:
    """What is run: so many rows of so many tokens, on a model of this width and depth."""

    length: int
    batch: int
    width: int
    layers: int


SIZES = {
    "length": (128, 256, 512, 1024, 2048, 4096, 8192),
    "batch": (1, 2, 4, 8, 16),
    "width": (128, 256, 512, 1024),
    "layers": (1, 2, 4, 8),
}


@dataclass(frozen=True)
class Grown:
    """What a phase took of one backend: of each size the seconds of each round."""

    backend: str
    along: str
    phase: str
    sizes: list[int]
    seconds: list[list[float]]

    @property
    def exponents(self) -> list[float]:
        """The exponent of each round."""
        return [exponent(self.sizes, one) for one in zip(*self.seconds, strict=True)]

    @property
    def last(self) -> float:
        """The exponent between the two largest sizes, by the medians."""
        return exponent(self.sizes[-2:], [median(one) for one in self.seconds[-2:]])

    def to_json(self) -> dict[str, Any]:
        found = self.exponents
        spread = {"median": median(found), "low": min(found), "high": max(found)}
        return {**vars(self), "exponent": spread, "last": self.last}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return b of the line log(seconds) = a + b * log(size) of least squares."""
    x, y = np.log(np.array(sizes, float)), np.log(np.array(seconds))
    x -= x.mean()
    return float(x @ y / (x @ x))


def grown(
    base: Point, backends: Sequence[str], along: Sequence[str], *, vocabulary: int, rounds: int,
    longest: int, clock: Callable[[], float],
) -> list[Grown]:  # fmt: skip
    """Time every backend at every size, in turn; the first round warms up and is not kept."""
    plan = [
        (backend, name, replace(base, **{name: size}))
        for name in along for size in sizes_of(name, longest)
        for backend in backends if fits(backend, replace(base, **{name: size}))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        models = Models(Path(folder), vocabulary)
        took = [[models.timed(backend, point, clock) for backend, _, point in plan]
                for _ in range(rounds + 1)][1:]  # fmt: skip
    return list(gathered(plan, took))


def sizes_of(along: str, longest: int) -> list[int]:
    return [size for size in SIZES[along] if along != "length" or size <= longest]


def fits(backend: str, point: Point) -> bool:
    heads = resized("qwen3-0.6b", width=point.width)["num_attention_heads"]
    return backend != "reference" or point.batch * heads * point.length**2 <= SCORES


def check(base: Point, backends: Sequence[str], along: Sequence[str], longest: int) -> None:
    """Raise InputError where a backend would be run at fewer sizes than a line needs."""
    for name in along:
        if name not in SIZES:
            raise InputError("--along", f"{show(name)} is none of {', '.join(SIZES)}")
        for backend in backends:
            points = [replace(base, **{name: size}) for size in sizes_of(name, longest)]
            count = sum(fits(backend, point) for point in points)
            if count < 2:
                sizes = f"of {', '.join(map(str, SIZES[name]))}"
                what = f"{backend} would be run at {count} {sizes}, but an exponent needs two"
                how = f"--longest {longest}" if name == "length" else f"--length {base.length}"
                raise InputError(f"--along {name}", what, how)


def gathered(
    plan: list[tuple[str, str, Point]], took: list[list[tuple[float, float]]]
) -> Iterator[Grown]:
    for backend, along in dict.fromkeys((backend, name) for backend, name, _ in plan):
        places = [place for place, one in enumerate(plan) if one[:2] == (backend, along)]
        sizes = [getattr(plan[place][2], along) for place in places]
        for number, phase in enumerate(PHASES):
            seconds = [[one[place][number] for one in took] for place in places]
            yield Grown(backend, along, phase, sizes, seconds)


class Models:
    """Models of the shape in other sizes, each written once and loaded once by a backend."""

    def __init__(self, folder: Path, vocabulary: int):
        self.folder, self.vocabulary = folder, vocabulary
        self.loaded: dict[tuple[str, Path], Any] = {}

    def timed(self, backend: str, point: Point, clock: Callable[[], float]) -> tuple[float, float]:
        """Return the seconds of a prompt and of the quickest step after it."""
        model = self.model(backend, point)
        tokens = np.array([prompt_of(point.length, self.vocabulary)] * point.batch)
        cache, took = model.make_cache(), []
        for fed in (tokens, *[tokens[:, :1]] * STEPS):
            began = clock()
            to_numpy(model.forward(fed, cache=cache, last_only=True))
            took.append(clock() - began)
        return took[0], min(took[1:])

    def model(self, backend: str, point: Point) -> Any:
        path = self.folder / f"{point.width}-{point.layers}"
        if not path.exists():
            config = resized("qwen3-0.6b", layers=point.layers, width=point.width)
            write_shape(config | {"vocab_size": self.vocabulary}, path, "float32")
        if (backend, path) not in self.loaded:
            self.loaded[backend, path] = own(backend, path, "float32", ())
        return self.loaded[backend, path]


def table(found: Sequence[Grown]) -> str:
    lines = [f"{'':24} {'from':>5} {'to':>5}  {'seconds':>15}  exponent{'':12} last"]
    for one in found:
        spread, ends = one.to_json()["exponent"], [median(s) for s in one.seconds]
        lines.append(
            f"{one.along:7} {one.phase:7} {one.backend:9}{one.sizes[0]:5} {one.sizes[-1]:5}"
            f"  {ends[0]:7.4f} {ends[-1]:7.3f}  {spread['median']:5.2f}"
            f"  {spread['low']:5.2f}-{spread['high']:<5.2f}  {one.last:5.2f}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.growth", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--backends", default=",".join(OURS), help="default %(default)s")
    parser.add_argument("--along", default=",".join(SIZES), help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=8192, help="of the prompts")
    parser.add_argument("--length", type=int, default=128, help="where it does not grow")
    parser.add_argument("--width", type=int, default=256, help="where it does not grow")
    parser.add_argument("--layers", type=int, default=2, help="where it does not grow")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument(
        "--processor", action="store_true", help="count processor seconds: for a busy machine"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    backends, along = options.backends.split(","), options.along.split(",")
    base = Point(options.length, 1, options.width, options.layers)
    try:
        check(base, backends, along, options.longest)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    found = grown(
        base, backends, along,
        vocabulary=options.vocabulary, rounds=options.rounds, longest=options.longest,
        clock=time.process_time if options.processor else time.perf_counter,
    )  # fmt: skip
    print(table(found))
    if options.json:
        told = {"options": vars(options), "growth": [one.to_json() for one in found]}
        options.json.write_text(json.dumps(told, indent=2, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
