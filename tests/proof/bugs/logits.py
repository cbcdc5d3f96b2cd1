"""Bugs of the head and of what follows it."""

from collections.abc import Callable

import torch
from torch import nn

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import bug
from tests.proof.seams import wrap


@bug(
    "final-softcap-missing",
    site="softcap",
    when=lambda subject: traits.gemma(subject) and subject.config.final_logit_softcapping,
    stage="config",
)
def softcap_missing(config) -> None:
    config.final_logit_softcapping = None


@bug(
    "final-softcap-missing",
    site="softcap",
    when=lambda subject, **_: traits.gemma(subject) and subject.config.final_logit_softcapping,
    variants={
        "on what goes into the head": {"part": lambda port: port.model.lm_head},
        "on what goes into the last norm": {"part": lambda port: port.final_norm},
    },
)
def capped_before(port: Port, part: Callable[[Port], nn.Module]) -> None:
    cap, port.config.final_logit_softcapping = port.config.final_logit_softcapping, None
    wrap(part(port), lambda own, x: own(cap * torch.tanh(x / cap)))


@bug(
    "tied-head-inherits-embed-scale",
    site="head",
    when=lambda subject: traits.gemma(subject) and traits.tied(subject),
)
def head_scaled(port: Port) -> None:
    scale = port.embedding.embed_scale.to(port.model.lm_head.weight.dtype).clone()
    wrap(port.model.lm_head, lambda head, x: head(x) * scale)


@bug(
    "tied-head-mishandled",
    site="head",
    when=lambda subject, tied, size: traits.tied(subject) == tied,
    variants={
        "a head of its own": {"tied": True, "size": 0.02},
        "a head of nought": {"tied": True, "size": 0},
        "tied by force": {"tied": False, "size": 0},
    },
)
def head_mishandled(port: Port, tied: bool, size: float) -> None:
    """Leave the head of a tied model as it was made, or give an untied one the embedding."""
    head, table = port.model.lm_head, port.embedding.weight
    if not tied:
        head.weight.copy_(table)
        return
    drawn = torch.randn(table.shape, generator=torch.Generator().manual_seed(0))
    head.weight = torch.nn.Parameter((size * drawn).to(table.dtype))
