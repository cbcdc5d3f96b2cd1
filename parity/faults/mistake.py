"""What an entry before or behind the model is: a class of bugs in ids, in choices, or in the loop.

A forward pass is a graph of calls, and its bugs are rewrites of them. A text becomes ids, and
logits become a choice, in a line of steps instead: here a bug is a change of one such step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockstep.parity.faults.entry import Entry


class Edit(NamedTuple):
    """A change of one step. `change` takes what the step has and who asks, and returns what is
    there instead, or None where there is nothing to be wrong."""

    step: str
    change: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Mistake(Entry[Edit]):
    """One class of bugs around the model: each variant is an edit.

    `where` is `tokens` or `decoded`: the list of ids that shows it.
    """
