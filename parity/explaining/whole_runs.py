"""Run the reference over the prompt: on its own, and with the bugs that a port has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.said.counterfactual import counterfactuals, fixes
from lockstep.parity.explaining.said.tap_figures import figures, own_figures
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.side_by_side import side_by_side
from lockstep.parity.judging.result import Tap
from lockstep.parity.noise import of_port

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

FLOAT32 = np.dtype(np.float32)
AT_ONCE = 4  # runs with bugs planted that go side by side: each holds logits


def whole_runs(case: Case, chosen: Mapping[Key, Chosen]) -> tuple[list[Tap], list[dict[str, Any]]]:
    """Run the reference on its own, and with the bugs that were found.

    Return a tap for every piece that was judged, in the order of computation, and the error of the
    logits with each bug fixed. Of some tokens there is no such run: the taps say what was judged.
    """
    if case.graph.targets is not None:
        return [own_figures(case, number) for number in sorted(case.judged)], []
    ops = of_port(case.model.ops, case.trial.dtype)
    run = Evaluator(case.graph, ops, FLOAT32, {}, case.read)
    asked, last = fixes(chosen, case), case.graph.taps["logits"]
    planted, found, logits = [calls for _, calls in asked], list[Tap](), list[np.ndarray]()
    numbers = case.judged.keys() | ({last} if asked else set())
    for number, row in side_by_side(run, numbers, planted[:AT_ONCE]):
        if number in case.judged:
            after = any(tap.status == "diverged" for tap in found)
            found.append(figures(case, number, row[0], after=after))
        logits += row if number == last else []
    for first in range(AT_ONCE, len(planted), AT_ONCE):
        for _, row in side_by_side(run, {last}, planted[first : first + AT_ONCE]):
            logits += row[1:]
    return found, counterfactuals(asked, logits, case) if asked else []
