"""Two dumps brought to the tokens that both have, and what that makes of their prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.excerpts.beginning import (
    BY_LENGTH,
    as_shorter_prompt,
    is_shorter_prompt,
    shortened,
)
from lockstep.parity.excerpts.dumped import brought_together
from lockstep.parity.excerpts.excerpt import Excerpt, Shape
from lockstep.parity.judging.padding import Padding
from lockstep.reference.checkpoint.config import CONFIG_LIMITS
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.strict_json import read_json_object

BY_MODULES = (
    "has some tokens of its prompt, but torch modules compute whole prompts: dump all tokens of "
    "fewer taps (--taps), or its first ones (--positions first:8)"
)
SOME = "of the prompt only what both sides have is compared, and indices count these: {which}"


@dataclass(frozen=True)
class Shared:
    """Both sides, cut to what both have; the prompt, or the rows of a batch, that they are of.

    `excerpt` is None if all tokens are there, or if the first ones are judged as a shorter prompt.
    """

    left: Dump
    right: Dump
    tokens: list[int] | None
    rows: list[list[int]] | None
    excerpt: Excerpt | None = None
    told: tuple[str, ...] = ()
    unread: Mapping[str, Shape] = field(default_factory=dict)  # taps of which nobody knows the axes

    @property
    def padding(self) -> Padding | None:
        """Which tokens of a batch are real; None if there is but one prompt."""
        if self.rows is None:
            return None
        whole = Padding(tuple(map(len, self.rows)))
        return whole if self.excerpt is None else self.excerpt.padding

    @property
    def length(self) -> int:
        """How many tokens a tensor is of; 1 if nobody knows."""
        return max(self.excerpt.counts) if self.excerpt else len(self.tokens or [0])


def shared(
    left: Dump, right: Dump, model: Any, tokens: list[int] | None, rows: list[list[int]] | None
) -> Shared:
    """Cut both sides to the tokens that both have.

    With a model, the first tokens of a prompt are a shorter prompt, and judged as such.
    Raises: InputError if there are none, or torch modules are to judge other ones.
    """
    prompts = rows if rows is not None else [tokens] if tokens else None
    left, right, excerpt, swapped, unread = brought_together(left, right, prompts)
    if excerpt is None:
        return Shared(left, right, tokens, rows)
    told = (SOME.format(which=excerpt.which), *swapped)
    if model is None:
        return Shared(left, right, tokens, rows, excerpt, told, unread)
    kind = rope_kind(model)
    if all(is_shorter_prompt(excerpt, one, kind) for one in (left, right)):
        left, right = (as_shorter_prompt(one, excerpt) for one in (left, right))
        tokens = None if tokens is None else tokens[: excerpt.counts[0]]
        rows = None if rows is None else shortened(rows, excerpt)
        return Shared(left, right, tokens, rows, None, told, unread)
    if isinstance(model, str | Path):
        raise InputError(right.path, BY_MODULES)
    return Shared(left, right, tokens, rows, excerpt, told, unread)


def rope_kind(model: Any) -> str | None:
    """Return a model's kind of rope; of a folder, one that counts tokens if its config names it."""
    if not isinstance(model, str | Path):
        return getattr(getattr(model.config, "rope_scaling", None), "kind", None)
    config = read_json_object(Path(model) / "config.json", subject="config", limits=CONFIG_LIMITS)
    return next((one for one in texts_in(config) if one in BY_LENGTH), None)


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text of a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts_in(one)
