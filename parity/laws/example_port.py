"""A tiny port for `lockstep laws`: one layer of attention over random weights, numpy alone.

    lockstep laws lockstep.parity.laws.example_port:port
    lockstep laws "python parity/laws/example_port.py" --vocab 50

`port` offers all that a Python port may offer. `late` is the same with a bug: what is decoded from
the cache has a position that is one too large. As a command it reads one line of token ids and
writes their logits as float32 numbers; with --no-mask every token sees all others.
"""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

VOCABULARY, WIDTH = 50, 16
rng = np.random.default_rng(0)
table, q, k, v, head = (
    rng.standard_normal(shape).astype(np.float32) / WIDTH**0.5
    for shape in ((VOCABULARY, WIDTH), *3 * [(WIDTH, WIDTH)], (WIDTH, VOCABULARY))
)


class Port:
    vocab_size = VOCABULARY

    def __init__(self, *, offset: int = 0, masked: bool = True):
        self.offset, self.masked = offset, masked

    def make_cache(self) -> SimpleNamespace:
        """Return an empty cache: keys, values and positions of a batch, -1 for padding."""
        return SimpleNamespace(keys=None, values=None, places=None)

    def __call__(
        self, tokens: np.ndarray, cache: Any = None, lengths: np.ndarray | None = None
    ) -> np.ndarray:
        """Return logits (B, L, V) of tokens (B, L); `lengths` (B,) counts those before padding."""
        begun = np.zeros((len(tokens), 1), int)
        if cache is not None and cache.places is not None:
            begun = cache.places.max(axis=1, keepdims=True) + 1 + self.offset
        places = begun + np.arange(tokens.shape[1])
        if lengths is not None:
            places = np.where(places < lengths[:, None], places, -1)
        x = table[tokens]
        turned = turn(x @ q, places), turn(x @ k, places), x @ v
        return (x + self.attend(*turned, places, cache)) @ head

    def attend(self, queries: Any, keys: Any, values: Any, places: Any, cache: Any) -> np.ndarray:
        seen_by = places
        if cache is not None:
            if cache.places is not None:
                keys = np.concatenate([cache.keys, keys], axis=1)
                values = np.concatenate([cache.values, values], axis=1)
                places = np.concatenate([cache.places, places], axis=1)
            cache.keys, cache.values, cache.places = keys, values, places
        scores = queries @ keys.swapaxes(-1, -2) / np.float32(WIDTH**0.5)
        seen = (places[:, None, :] <= seen_by[:, :, None]) & (places >= 0)[:, None, :]
        if self.masked:
            scores = np.where(seen, scores, np.float32(-1e9))
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True) @ values


def turn(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Turn pairs of numbers by an angle that grows with the position."""
    angle = (places[..., None] * 100.0 ** (-np.arange(WIDTH // 2) / WIDTH)).astype(np.float32)
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


port, late = Port(), Port(offset=1)


def main() -> None:
    tokens = np.array([[int(word) for word in sys.stdin.readline().split(",")]])
    logits = Port(masked="--no-mask" not in sys.argv)(tokens)
    sys.stdout.buffer.write(logits.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
