"""What an entry before or behind the model is: a class of bugs in ids, in choices, or in the loop.

A forward pass is a graph of calls, and its bugs are rewrites of them. A text becomes ids, and
logits become a choice, in a line of steps instead: here a bug is a change of one such step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """A change of one step. `change` takes what the step has and who asks, and returns what is
    there instead, or None where there is nothing to be wrong."""

    step: str
    change: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Mistake:
    """One class of bugs around the model. `variants` are the forms it is found in, each an edit.

    The fields are those of `fault.Fault`. `where` is `tokens` or `decoded`: the list of ids that
    shows it. A `convention` is no bug: engines that are right in their own way differ in it.
    """

    id: str
    wrong: str
    right: str
    symptom: str
    where: str
    fix: str
    variants: Mapping[str, Edit]
    evidence: tuple[str, ...] = ()
    convention: bool = False
    family: str = field(default="", compare=False)
