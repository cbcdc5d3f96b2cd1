"""What the reference makes of a prompt in its first layers, to know names by values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from lockstep.reference.model import Model


@dataclass(frozen=True)
class FirstLayer:
    """The reference's own values, (1, L, ...), and the norm behind its last layer.

    `taps` holds all that is made up to the end of layer 1, and the stream behind layer 2, where
    there are so many: so what stands second in a list is known as well, and what was left out of
    it. `before` names the stream that enters layer 0, `behind` the one that leaves it. `norm` is
    the tap of the last norm, `gain` (E,) and `bias` (E,) its weights; a norm without a mean has no
    bias. `streams` yields what is before the layers and behind each of them, as it is made.
    """

    taps: Mapping[str, np.ndarray]
    before: str
    behind: str
    layers: int
    norm: str
    gain: np.ndarray
    bias: np.ndarray | None
    streams: Callable[[], Iterator[tuple[str, np.ndarray]]]

    def layer(self, number: int) -> str:
        """Return the tap of the stream behind a layer."""
        return f"{self.stem}{number}"

    @property
    def stem(self) -> str:
        """What stands before the number of a layer."""
        return self.behind.removesuffix("0")

    @np.errstate(all="ignore")
    def is_normed(self, x: np.ndarray) -> bool:
        """Say whether rows (..., E) come out of the last norm, rightly weighed or not.

        Without its gain, or with 1 too much of it, they are no stream either.
        """
        gains = (self.gain, np.ones_like(self.gain), 1 + self.gain)
        return any(self.has_unit_rows(x, gain) for gain in gains)

    def has_unit_rows(self, x: np.ndarray, gain: np.ndarray) -> bool:
        if x.shape[-1] != len(gain):
            return False
        rows = (x if self.bias is None else x - self.bias) / np.where(gain == 0, np.inf, gain)
        size = np.sqrt(np.mean(np.square(rows), -1))
        return bool(np.all(np.abs(size - 1) < UNIT))


UNIT = 0.02  # how far eps, and rounding to half precision, may take the size of a normed row from 1
STAGES = 4  # the embeddings and three layers


@np.errstate(all="ignore")
def first_layer(model: Model, tokens: np.ndarray) -> FirstLayer:
    """Run the reference over tokens (1, L) as far as its first layers go."""
    taps: dict[str, np.ndarray] = {}
    layers = model.checkpoint.config.num_hidden_layers
    count, stages = min(layers + 1, STAGES), model.stages(tokens, trace=taps.__setitem__)
    before, behind, *_ = [name for name, _ in islice(stages, count)]
    norm = "transformer.ln_f" if behind.startswith("transformer.") else "model.norm"
    checkpoint = model.checkpoint
    bias = weight(model, f"{norm}.bias") if checkpoint.has(f"{norm}.bias") else None
    inside = f"{behind.removesuffix('0')}{STAGES - 2}."
    taps = {tap: value for tap, value in taps.items() if not tap.startswith(inside)}
    gain, every = weight(model, f"{norm}.weight"), partial(streams, model, tokens)
    return FirstLayer(taps, before, behind, layers, norm, gain, bias, every)


def streams(model: Model, tokens: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the streams before all layers and behind each, one after another."""
    return islice(model.stages(tokens), model.checkpoint.config.num_hidden_layers + 1)


def weight(model: Model, name: str) -> np.ndarray:
    stored: Any = model.adapters.weights.get(name)
    return np.asarray(model.checkpoint.tensor(name) if stored is None else stored, np.float32)
