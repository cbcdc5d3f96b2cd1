"""What is compared before any activation: the port's config and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.reference.model import Model


def config_findings(model: Model, path: str | Path | None) -> list[Any]:
    """Return what a port's config has otherwise than the checkpoint's."""
    if path is None:
        return []
    from lockstep.parity.before.configs import compare_configs

    return [*compare_configs(model.checkpoint, path)]


def weight_findings(model: Model, path: str | Path | None, result: Diagnosis) -> list[Any]:
    """Return what is wrong with a port's weights; what is harmless is noted as a convention."""
    if path is None:
        return []
    from lockstep.parity.before.weights import compare_weights

    report = compare_weights(model.checkpoint, path)
    result.conventions += [str(one) for one in report.findings if one.harmless]
    return [one for one in report.findings if not one.harmless]
