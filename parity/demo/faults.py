"""The bug that the demo plants: a rope base that got lost on the way from the config."""

from types import SimpleNamespace
from typing import Any

DEFAULT_THETA = 10_000.0


def lost_theta(ops: Any) -> Any:
    """Return `ops` with rope frequencies that ignore the model's own theta.

    Newer configs keep `rope_theta` inside `rope_parameters`. A port that looks for it at the top
    level alone finds nothing and falls back to its default, without a word. Every shape fits.
    """

    def rope_frequencies(*, theta: float, dims: int) -> Any:
        return ops.rope_frequencies(theta=DEFAULT_THETA, dims=dims)

    right = {name: getattr(ops, name) for name in ops.__all__}
    return SimpleNamespace(**right | {"rope_frequencies": rope_frequencies})
