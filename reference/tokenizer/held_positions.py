"""Where the tokens that a cache holds stand: whole numbers, so both backends share them."""

import numpy as np

PADDING = -1  # the position of a token that nobody sees


class HeldPositions:
    """The position of every held token, (B, S); padding stands at -1."""

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    @property
    def length(self) -> int:
        """How many tokens are held, padding included."""
        return 0 if self.array is None else self.array.shape[1]

    def next(self, batch: int) -> np.ndarray:
        """Return where each row goes on: one past its highest position, (B,).

        Raises: ValueError if another number of rows is held.
        """
        if self.array is None:
            return np.zeros(batch, np.int64)
        if len(self.array) != batch:
            raise ValueError(f"{batch} rows, but the cache holds {len(self.array)}")
        return self.array.max(axis=1, initial=PADDING) + 1

    def extend(self, positions: np.ndarray) -> np.ndarray:
        """Note the positions of new tokens, (B, L); return those of all, (B, S)."""
        held = [] if self.array is None else [self.array]
        self.array = np.concatenate([*held, positions], axis=1)
        return self.array
