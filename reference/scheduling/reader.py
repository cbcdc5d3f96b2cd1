"""A model that reads texts of which it has read the beginning."""

from collections.abc import Sequence
from typing import Any

from lockstep.reference.scheduling.common_prefix import common_prefix
from lockstep.reference.scheduling.feeding import Watch, fed, last_logits
from lockstep.reference.scheduling.host import Host


class Reader:
    """A model and a cache that holds `held`. Of the next text only what is new is read.

    `torn` says that a pass was broken off: how far the cache has gone then, nobody knows.
    """

    def __init__(
        self,
        model: Any,
        cache: Any,
        held: Sequence[int] = (),
        *,
        host: Host,
        chunk: int | None = None,
        watch: Watch | None = None,
    ):
        self.model, self.cache, self.held, self.host = model, cache, list(held), host
        self.chunk, self.watch = chunk, watch
        self.torn = False

    def read(self, text: Sequence[int], *, rows: int) -> Any:
        """Return the logits (rows, V) of the last tokens of a text.

        The cache forgets what the text does not have, and the tokens whose logits are wanted: they
        are read again.
        Raises: InputError if the cache has dropped what would be needed.
        """
        self.cut_back(min(common_prefix(self.held, text), len(text) - rows))
        self.torn = True
        chunk, new = self.chunk if rows == 1 else None, list(text[len(self.held) :])
        new = fed(self.model, new, self.cache, chunk, self.watch, self.host)
        logits = last_logits(self.model, new, self.cache, self.watch, rows=rows)
        self.held, self.torn = list(text), False
        return logits

    def cut_back(self, keep: int) -> None:
        """Let the cache hold the first `keep` tokens. Raises: InputError as `read`."""
        self.cache.trim(len(self.held) - keep)
        self.held = self.held[:keep]

    def settle(self, text: Sequence[int]) -> None:
        """Let the cache hold nothing that is not of this text, whatever was read or begun."""
        keep = common_prefix(self.held, text)
        self.cache.trim(self.cache.positions.length - keep)
        self.held = self.held[:keep]
