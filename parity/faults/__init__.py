"""The executable catalogue of porting bugs: one file a family, one entry a class.

An entry says what is wrong in formulas and enacts it as a rewrite of calls; see `fault.py` for what
an entry has and `rewrites.py` for what rewrites are made of. A new entry goes into `FAULTS` of its
family's file, and nothing else has to be told.
"""

from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from lockstep.parity.faults.fault import Fault


@cache
def catalogue() -> tuple[Fault, ...]:
    """Return every entry, by family and in the order of its file."""
    return tuple(
        replace(fault, family=family)
        for family in families()
        for fault in module(family).FAULTS
    )  # fmt: skip


@cache
def families() -> tuple[str, ...]:
    """Return the names of the files that hold entries; the other files help them."""
    names = sorted(found.name for found in iter_modules(__path__))
    return tuple(name for name in names if hasattr(module(name), "FAULTS"))


def module(name: str) -> ModuleType:
    return import_module(f"lockstep.parity.faults.{name}")
