"""The executable catalogue of porting bugs: one file a family, one entry a class.

An entry says what is wrong in formulas and enacts it as a rewrite of calls; see `fault.py` for what
an entry has and `rewrites.py` for what rewrites are made of. A new entry goes into `FAULTS` of its
family's file, and nothing else has to be told.
"""

from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from lockstep.parity.faults.fault import Fault

HELPERS = ("fault", "rewrites")


@cache
def catalogue() -> tuple[Fault, ...]:
    """Return every entry, by family and in the order of its file."""
    return tuple(
        replace(fault, family=family) for family in families()
        for fault in import_module(f"lockstep.parity.faults.{family}").FAULTS
    )  # fmt: skip


def families() -> list[str]:
    """Return the names of the files that hold entries."""
    names = sorted(module.name for module in iter_modules(__path__))
    return [name for name in names if name not in HELPERS and not name.startswith("_")]
