"""A checkpoint's tokenizer, read once: that of a large vocabulary takes half a second to check."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lockstep.parity.collector import no_collector
from lockstep.reference.checkpoint.checkpoint import Checkpoint

if TYPE_CHECKING:
    from lockstep.reference.tokenizer.tokenizer import Tokenizer

_read: WeakKeyDictionary[Checkpoint, Tokenizer] = WeakKeyDictionary()


def tokenizer_once(checkpoint: Checkpoint) -> Tokenizer:
    """Return the tokenizer of a checkpoint that is open, the same one each time.

    Raises: InputError if it has none that can be read.
    """
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    if checkpoint not in _read:
        with no_collector():
            _read[checkpoint] = load_tokenizer(checkpoint.path)
    return _read[checkpoint]
