"""Arrays that are told in a few words, so that an example can be printed and made again."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.reference.precision import rounded

LITERAL = 12  # numbers that are printed one by one
FILLS = ("whole", "normal", "small", "large", "wide", "constant", "zeros")


def filled(
    shape: tuple[int, ...], fill: str, seed: int, spikes: Mapping[int, float], dtype: np.dtype
) -> np.ndarray:
    """Return an array by its recipe; `spikes` are numbers at flat places.

    Whole numbers from -3 to 3 make ties; large ones are about 10,000, small ones 0.001; wide ones
    lie orders of magnitude apart.
    """
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(shape)
    made = {
        "whole": lambda: rng.integers(-3, 4, shape).astype(np.float64),
        "normal": lambda: noise,
        "small": lambda: noise * 1e-3,
        "large": lambda: noise * 1e4,
        "wide": lambda: noise * np.exp(3 * rng.standard_normal(shape)),
        "constant": lambda: np.full(shape, 1.25),
        "zeros": lambda: np.zeros(shape),
    }[fill]()
    for place, value in spikes.items():
        made.flat[place] = value
    return rounded(made, dtype)


def recipe(
    shape: tuple[int, ...], fill: str, seed: int, spikes: Mapping[int, float], dtype: np.dtype
) -> Given:
    """Return such an array with an expression for it: its numbers if they are few."""
    value = filled(shape, fill, seed, spikes, dtype)
    if value.size <= LITERAL:
        return Given(value, literal(value))
    hurt = ", ".join(f"{place}: {number_said(one)}" for place, one in spikes.items())
    return Given(value, f"filled({shape}, {fill!r}, {seed}, {{{hurt}}}, {type_said(dtype)})")


def literal(value: np.ndarray) -> str:
    """Return an expression that lists the numbers, each as short as its dtype allows."""
    if not value.size:
        return f"np.zeros({value.shape}, {type_said(value.dtype)})"
    return f"np.array({nested(value)}, {type_said(value.dtype)})"


def nested(value: np.ndarray) -> str:
    if value.ndim:
        return f"[{', '.join(nested(part) for part in value)}]"
    return number_said(value[()])


def number_said(value: Any) -> str:
    if np.isfinite(value):
        return str(value)
    return {"inf": "np.inf", "-inf": "-np.inf"}.get(str(value), "np.nan")


def type_said(dtype: np.dtype) -> str:
    return "ml_dtypes.bfloat16" if dtype.name == "bfloat16" else f"np.{dtype.name}"


def whole_numbers(value: np.ndarray) -> Given:
    """Return whole numbers with an expression, rows that count up as ranges."""
    counting = value.ndim == 2 and value.shape[1] > 3 and (np.diff(value) == 1).all()
    if not counting:
        empty = f"np.zeros({value.shape}, np.int64)"
        return Given(value, f"np.array({value.tolist()})" if value.size else empty)
    rows = [f"np.arange({row[0]}, {row[-1] + 1})" for row in value.tolist()]
    return Given(value, f"np.stack([{', '.join(rows)}])")
