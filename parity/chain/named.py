"""From mistakes that fit to what a diagnosis says of them."""

from __future__ import annotations

from lockstep.parity.chain.fitting import Candidate, Fit
from lockstep.parity.explaining.said.diagnosis import MOST_TIES, Named

SURE = 0.99  # as of what is named inside of the model


def named(fit: Fit, tap: str, before: float, seen: str) -> list[Named]:
    """Return a bug for each mistake of a fit, the confidence shared with what fits as well."""
    return [
        one_named(one, ties, fit, tap, before, seen)
        for one, ties in zip(fit.chosen, fit.ties, strict=True)
    ]


def one_named(
    one: Candidate, ties: tuple[str, ...], fit: Fit, tap: str, before: float, seen: str
) -> Named:
    rival = None
    if fit.rival is not None and fit.rival[0] != one.mistake.id:
        rival = {"id": fit.rival[0], "residual": fit.rival[1]}
    return Named(
        id=one.mistake.id,
        variant=one.variant or None,
        taps=[tap],
        layers=[],
        confidence=round(SURE / (1 + len(ties)), 3),
        residual_before=before,
        residual_after=0.0,
        noise=0.0,
        runner_up=rival,
        also_fits=[*ties[:MOST_TIES]],
        fix=one.mistake.fix,
        wrong=one.mistake.wrong,
        right=one.mistake.right,
        seen=seen,
    )
