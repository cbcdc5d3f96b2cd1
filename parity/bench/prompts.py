"""Prompts whose continuations are more or less certain: where a decoder may run ahead or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TEXTS = {
    "low": "Count from 1 to 60: 1, 2, 3, 4, 5, 6, 7, 8,",
    "medium": "Explain in simple words how rain forms.",
    "high": "Write a poem about a stranger whom nobody expected.",
}


@dataclass(frozen=True)
class Prompt:
    """What is gone on with: a text, or ids where there is no tokenizer."""

    kind: str
    text: str | None
    ids: tuple[int, ...] = ()

    def tokens(self, tokenizer: Any) -> list[int]:
        """Return the ids, as a user's turn if the model has a chat template."""
        if self.text is None:
            return list(self.ids)
        if "default" in tokenizer.parts[1].templates:
            return tokenizer.encode_chat([{"role": "user", "content": self.text}])
        return tokenizer.encode(self.text)


def prompts_for(tokenizer: Any, vocabulary: int, length: int) -> list[Prompt]:
    """Return a prompt of each kind. Without a tokenizer: ids that repeat, and ids that do not."""
    if tokenizer is not None:
        return [Prompt(kind, text) for kind, text in TEXTS.items()]
    drawn = np.random.default_rng(length).integers(0, vocabulary, length).tolist()
    return [Prompt("repeated", None, repeated(drawn)), Prompt("random", None, tuple(drawn))]


def repeated(ids: Sequence[int]) -> tuple[int, ...]:
    """Return the first four ids over and over, as many as there are."""
    return tuple(ids[place % 4] for place in range(len(ids)))
