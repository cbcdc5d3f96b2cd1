"""The entries before and behind the model: ids, choices, the loop. `catalogue()` has the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module

from lockstep.parity.faults.mistake import Mistake

FAMILIES = {"tokenizer": "tokenizer", "sampling": "sampling", "decoding": "loop"}  # and their files


@cache
def mistakes() -> tuple[Mistake, ...]:
    """Return every entry, by family and in the order of its file."""
    return tuple(
        replace(one, family=family)
        for family, file in FAMILIES.items()
        for one in import_module(f"lockstep.parity.faults.{file}").MISTAKES
    )
