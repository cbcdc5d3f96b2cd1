"""Where a bug that was named belongs: among bugs, conventions, or what is said of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named
from lockstep.parity.explaining.said.report import listed, remark

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case


def file(found: list[Named], case: Case, result: Diagnosis) -> None:
    """Put what was named where it belongs: bugs, conventions, a quantisation of the port's own."""
    entries = case.faults
    merged: dict[str, Named] = {}
    for one in found:
        merged[one.id] = merged[one.id].joined(one) if one.id in merged else one
    for one in merged.values():
        if not entries[one.id].convention:
            result.faults.append(one)
        elif one.id.startswith("port-quantised-"):
            result.weights.append(f"{remark(one)}; seen at {listed(one.taps)}; {one.fix}")
        else:
            result.conventions.append(remark(one))
