"""Positions: zero, far, repeated and unsorted ones; frequencies of every kind of scaling."""

from collections.abc import Callable

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.draw import COUNTS, INFINITE, NAN, Draw, Family
from lockstep.parity.conformance.values import whole_numbers

DIMS = (2, 4, 6, 8, 16, 64, 80, 96, 128, 256)
THETAS = (10000.0, 100.0, 500000.0, 1000000.0)
# Angles in float32 are a legal convention, and off by 1e-3 beyond some ten thousand.
STARTS = (0, 1, 7, 31, 1000, 8191)


def positions(draw: Draw, batch: int, count: int) -> Given:
    """Draw positions that count up, and at times go back or repeat."""
    starts = np.array([[draw.one_of(STARTS)] for _ in range(batch)])
    places = starts + np.arange(count)
    order = draw.one_of(("rising", "rising", "reversed", "repeated"))
    if order == "reversed":
        places = places[:, ::-1].copy()
    return whole_numbers(places // 2 if order == "repeated" else places)


def frequencies(draw: Draw, dims: int) -> Given:
    theta = draw.one_of(THETAS)
    value = theta ** (-np.arange(0, dims, 2) / dims)
    return Given(value, f"{theta} ** (-np.arange(0, {dims}, 2) / {dims})")


def rope(draw: Draw) -> dict[str, Given]:
    batch, count, dims = draw.one_of((1, 2)), draw.one_of(COUNTS), draw.one_of(DIMS)
    shape = batch, draw.one_of((1, 2, 3)), count, dims
    return {
        "x": draw.array(shape, spikes=INFINITE + NAN),
        "positions": positions(draw, batch, count),
        "frequencies": frequencies(draw, dims),
        "factor": draw.option((1.0, 1.0, 1.3465735902799727)),
    }


Options = Callable[[Draw, int], dict[str, Given]]


def frequency(more: Options | None = None, *, rows: bool = False) -> Callable:
    """Return the arguments of one kind of frequencies: theta, dims, and what the kind adds."""

    def arguments(draw: Draw) -> dict[str, Given]:
        dims = draw.one_of(DIMS[1:])
        lengths = [draw.one_of((1, 16, 17, 4096, 5000)) for _ in range(draw.whole(1, 2))]
        first = {"lengths": whole_numbers(np.array(lengths))} if rows else {}
        plain = {"theta": draw.option(THETAS), "dims": Given(dims, str(dims))}
        return first | plain | (more(draw, dims) if more else {})

    return arguments


def factor(draw: Draw) -> dict[str, Given]:
    return {"factor": draw.option((1.0, 2.0, 8.0, 32.0))}


def original(draw: Draw) -> dict[str, Given]:
    return {"original_max_position_embeddings": draw.option((16, 4096, 8192))}


def linear(draw: Draw, dims: int) -> dict[str, Given]:
    return factor(draw)


def dynamic(draw: Draw, dims: int) -> dict[str, Given]:
    return factor(draw) | original(draw)


def llama3(draw: Draw, dims: int) -> dict[str, Given]:
    bounds = {"low_freq_factor": draw.option((1.0, 0.5)), "high_freq_factor": draw.option((4.0,))}
    return factor(draw) | bounds | original(draw)


def longrope(draw: Draw, dims: int) -> dict[str, Given]:
    short = Given((1.0,) * (dims // 2), f"(1.0,) * {dims // 2}")
    slow = draw.one_of((4.0, 1.5))
    long = Given((slow,) * (dims // 2), f"({slow},) * {dims // 2}")
    return {"short_factor": short, "long_factor": long} | original(draw)


def proportional(draw: Draw, dims: int) -> dict[str, Given]:
    return {"partial_rotary_factor": draw.option((1.0, 0.25, 0.5, 0.0))}


def yarn(draw: Draw, dims: int) -> dict[str, Given]:
    betas = {"beta_fast": draw.option((32.0, 8.0)), "beta_slow": draw.option((1.0, 2.0))}
    last = {"truncate": draw.option((True, False))}
    return factor(draw) | betas | original(draw) | last


POSITIONS: Family = {
    "rope": rope,
    "rope_frequencies": frequency(),
    "rope_frequencies_linear": frequency(linear),
    "rope_frequencies_dynamic": frequency(dynamic, rows=True),
    "rope_frequencies_llama3": frequency(llama3),
    "rope_frequencies_longrope": frequency(longrope, rows=True),
    "rope_frequencies_proportional": frequency(proportional),
    "rope_frequencies_yarn": frequency(yarn),
}
