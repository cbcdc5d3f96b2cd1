"""What the logits would be with each bug fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.parity.explaining.hypothesis import Atom, rewritten
from lockstep.parity.explaining.verdict import Chosen, Key
from lockstep.parity.graph import Evaluator
from lockstep.parity.metrics import difference, rms

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

FLOAT32 = np.dtype(np.float32)


def counterfactuals(chosen: Mapping[Key, Chosen], case: Case) -> list[dict[str, Any]]:
    """Return the error of the logits as they are, with each bug fixed alone, and with all fixed.

    An error is a root mean square, relative to that of the right logits. With all fixed, what
    remains is what the named bugs do not account for.
    """
    if not chosen:
        return []
    run = Evaluator(case.graph, case.model.ops, FLOAT32, {}, case.read)
    number = case.graph.taps["logits"]
    right = run.target(number)
    bugs = {key: [Atom(bug.hypothesis, calls_of(bug))] for key, bug in chosen.items()}

    def logits(left: Mapping[Key, list[Atom]]) -> np.ndarray:
        calls = rewritten([atom for atoms in left.values() for atom in atoms], case.graph)
        return run.target(number, calls or {})

    def error(found: np.ndarray, truth: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            return rms(difference(found, truth)) / (rms(right) or 1.0)

    predicted = logits(bugs)
    actual = case.dumped.get(number, predicted)
    rows = [{"fixed": [], "logits_error": error(actual, right)}]
    for key in bugs if len(bugs) > 1 else ():
        rest = {other: atoms for other, atoms in bugs.items() if other != key}
        rows.append({"fixed": [key[0]], "logits_error": error(logits(rest), right)})
    every = sorted({key[0] for key in bugs})
    return [*rows, {"fixed": every, "logits_error": error(actual, predicted)}]


def calls_of(bug: Chosen) -> frozenset[int]:
    return frozenset(number for atom in bug.atoms for number in atom.calls)
