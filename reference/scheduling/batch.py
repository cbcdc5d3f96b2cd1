"""Token ids on their way into a model: checked once, for every backend."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.held_positions import HeldPositions
from lockstep.reference.stores.ring import PADDING

POSITIONS = 1 << 24  # beyond, float32 angles no longer tell a position from the next


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, right-padded to one length.

    `tokens` and `positions` are (B, L); `marked` is `positions` with padding at -1; `wanted`
    says which tokens get logits: of each row its last real one, (B,), or several, (B, N); or None,
    which is all.
    """

    tokens: np.ndarray
    positions: np.ndarray
    marked: np.ndarray
    wanted: np.ndarray | None


def check_order(held: HeldPositions, *, reordered: bool) -> None:
    """Refuse reordered tokens where a cache drops some by their positions. Raises: InputError."""
    if reordered and held.rings:
        raise InputError("cache", "drops tokens by their positions, but these are reordered")


def places_of(batch: Batch, held: np.ndarray, *, reordered: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return what decides who sees whom: new tokens' places (B, L), and all held ones' (B, S).

    They are the positions; or, of `reordered` tokens, their numbers in the row. A held place is -1
    where the token is padding.
    """
    if not reordered:
        return batch.positions, held
    numbers = np.broadcast_to(np.arange(held.shape[1]), held.shape)
    new = numbers[:, held.shape[1] - batch.tokens.shape[1] :]
    return new, np.where(held < 0, PADDING, numbers)


@dataclass(frozen=True)
class BatchRules:
    """What a model takes: ids below `vocab_size`. `source` is the path that errors name.

    `position_limit` is how many positions have a learned embedding, None if none is learned.
    """

    source: Path
    vocab_size: int
    position_limit: int | None = None

    def batch(
        self,
        tokens: Any,
        *,
        lengths: Any,
        positions: Any,
        held: HeldPositions,
        last_only: bool,
        only: Any = None,
    ) -> Batch:
        """Return the checked batch; positions go on from `held` unless they are given.

        Raises: InputError that names the first id, length or shape that is wrong.
        """
        tokens = self.tokens(tokens)
        lengths = self.lengths(tokens, lengths)
        positions = self.positions(tokens, positions, held)
        real = np.arange(tokens.shape[1]) < lengths[:, None]
        if self.position_limit is not None:
            positions = self.embedded(positions, real, self.position_limit)
        wanted = self.wanted(tokens, lengths, last_only=last_only, only=only)
        return Batch(tokens, positions, np.where(real, positions, PADDING), wanted)

    def wanted(
        self, tokens: np.ndarray, lengths: np.ndarray, *, last_only: bool, only: Any
    ) -> np.ndarray | None:
        """Return which tokens get logits: the last, (B,), those of `only`, (B, N), or None for all.

        Raises: InputError if one is asked for that is not there.
        """
        if only is None:
            if last_only and not tokens.shape[1]:
                what = "the last token is wanted, but there are no tokens"
                raise InputError(self.source, what)
            return lengths - 1 if last_only else None
        only = np.asarray(only)
        rows = only.ndim == 2 and only.dtype.kind in "iu" and len(only) == len(lengths)
        if not rows or ((only < 0) | (only >= lengths[:, None])).any():
            found = f"logits are wanted of {only.dtype} of shape {only.shape}"
            what = f"{found}, but should be of tokens of each row: integers of shape (batch, N)"
            raise InputError(self.source, what)
        return only

    def tokens(self, tokens: Any) -> np.ndarray:
        """Return ids as (B, L). Raises: InputError for another shape, or an id without a row."""
        try:
            tokens = np.asarray(tokens)
        except ValueError:
            what = "rows of tokens are not equally long; pad them, and say lengths="
            raise InputError(self.source, what) from None
        if tokens.ndim != 2 or (tokens.size and tokens.dtype.kind not in "iu"):
            found = f"tokens are {tokens.dtype} of shape {tokens.shape}"
            raise InputError(
                self.source, f"{found}, but should be integers of shape (batch, length)"
            )
        outside = np.argwhere((tokens < 0) | (tokens >= self.vocab_size))
        if len(outside):
            found = f"token id {tokens[tuple(outside[0])]}"
            place = f"row {outside[0][0]}, token {outside[0][1]}"
            raise InputError(self.source, f"{found}, but should be 0..{self.vocab_size - 1}", place)
        return tokens.astype(np.int64)

    def lengths(self, tokens: np.ndarray, lengths: Any) -> np.ndarray:
        """Return how many tokens of each row are real, (B,): all, unless it is said."""
        batch, longest = tokens.shape
        lengths = np.full(batch, longest) if lengths is None else np.asarray(lengths)
        shortest = min(1, longest)
        within = ((shortest <= lengths) & (lengths <= longest)).all()
        if lengths.shape != (batch,) or lengths.dtype.kind not in "iu" or not within:
            found = f"lengths={lengths.tolist()}"
            raise InputError(
                self.source, f"{found}, but should be {batch} of {shortest}..{longest}"
            )
        return lengths

    def positions(self, tokens: np.ndarray, positions: Any, held: HeldPositions) -> np.ndarray:
        """Return where tokens stand, (B, L): behind those that are held, unless it is said.

        Raises: InputError for another shape or batch, or a position that no angle can tell.
        """
        try:
            start = held.next(len(tokens))
        except ValueError as error:
            raise InputError(self.source, str(error)) from None
        if positions is None:
            return start[:, None] + np.arange(tokens.shape[1])
        positions = np.asarray(positions)
        whole = positions.dtype.kind in "iu" or not positions.size
        if positions.shape != tokens.shape or not whole or (positions < 0).any():
            found = f"positions are {positions.dtype} of shape {positions.shape}"
            what = f"{found}, but should be integers of shape {tokens.shape}, none negative"
            raise InputError(self.source, what)
        if (positions >= POSITIONS).any():
            what = f"position {positions.max()}, but should be below {POSITIONS}"
            raise InputError(self.source, what)
        return positions.astype(np.int64)

    def embedded(self, positions: np.ndarray, real: np.ndarray, limit: int) -> np.ndarray:
        """Check that every real token has an embedded position; let padding look up the last."""
        outside = np.argwhere(real & (positions >= limit))
        if len(outside):
            found = f"position {positions[tuple(outside[0])]}"
            place = f"row {outside[0][0]}, token {outside[0][1]}"
            what = f"{found}, but the model has positions 0..{limit - 1}"
            raise InputError(self.source, what, place)
        return np.minimum(positions, limit - 1)
