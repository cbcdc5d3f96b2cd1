"""Where a sampler's random numbers come from: a seed, or a file that another engine can share."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole

LIMIT = 1 << 26
NUMBER = re.compile(r"-?([0-9]{1,30}(\.[0-9]{0,60})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")


def uniforms(path: str | None, seed: int) -> Iterator[float]:
    """Return numbers in [0, 1): those of a file, or an endless stream from a seed.

    The stream is NumPy's Philox generator, whose numbers are the same on every machine. A file
    holds numbers between spaces or line breaks, or a JSON list.
    Raises: InputError if the file holds anything else, and, when asked, if it has no more.
    """
    if path is None:
        return seeded(seed)
    return from_file(Path(path), parsed(Path(path)))


def seeded(seed: int) -> Iterator[float]:
    generator = np.random.Generator(np.random.Philox(seed))
    while True:
        yield float(generator.random())


def from_file(path: Path, numbers: list[float]) -> Iterator[float]:
    yield from numbers
    raise InputError(path, f"holds {len(numbers)} uniforms, but more tokens were asked for")


def parsed(path: Path) -> list[float]:
    text = read_whole(path, limit=LIMIT).decode("ascii", errors="replace").strip()
    listed = text[1:-1].split(",") if text[:1] + text[-1:] == "[]" else text.split()
    words = [word.strip() for word in listed]
    wrong = next((word for word in words if not NUMBER.fullmatch(word)), None)
    if wrong is not None:
        raise InputError(path, f"not a list of numbers: {show(wrong)} is none")
    numbers = [float(word) for word in words]
    for place, number in enumerate(numbers):
        if not 0 <= number < 1:
            what = f"uniform {number}, but should be at least 0 and below 1"
            raise InputError(path, what, f"number {place}")
    return numbers
