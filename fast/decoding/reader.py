"""A model that reads texts of which it has read the beginning."""

from collections.abc import Sequence
from typing import Any

from lockstep.fast.decoding.autoregressive import Watch, fed
from lockstep.fast.model import Model
from lockstep.fast.shapes import Array
from lockstep.reference.tokenizer.common_prefix import common_prefix


class Reader:
    """A model and a cache that holds `held`. Of the next text only what is new is read."""

    def __init__(
        self,
        model: Model,
        cache: Any,
        held: Sequence[int] = (),
        *,
        chunk: int | None = None,
        watch: Watch | None = None,
    ):
        self.model, self.cache, self.held = model, cache, list(held)
        self.chunk, self.watch = chunk, watch

    def read(self, text: Sequence[int], *, rows: int) -> Array:
        """Return the logits (rows, V) of the last tokens of a text.

        The cache forgets what the text does not have, and the tokens whose logits are wanted: they
        are read again.
        Raises: InputError if the cache has dropped what would be needed.
        """
        keep = min(common_prefix(self.held, text), len(text) - rows)
        self.cache.trim(len(self.held) - keep)
        self.held = list(text[:keep])
        chunk = self.chunk if rows == 1 else None
        new = fed(self.model, list(text[keep:]), self.cache, chunk, self.watch)
        for name, value in self.model.stages([new], cache=self.cache, last_only=rows == 1):
            if self.watch is not None:
                self.watch(name)
            logits = value
        self.held = list(text)
        return logits[0, -rows:]

    def settle(self, text: Sequence[int]) -> None:
        """Let the cache hold nothing that is not of this text, whatever was read or begun."""
        keep = common_prefix(self.held, text)
        self.cache.trim(self.cache.positions.length - keep)
        self.held = self.held[:keep]
