"""Loops around padded batches: what they hand on, rightly and not. See `decoding.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from lockstep.parity.capture import torch as capture
from tests.proof.decoding import Tokens
from tests.proof.port import Port

# What a loop around a batch forgets: which tokens only fill up, or where each row is.
BATCH_BUGS = (
    "mask-padding-attended",
    "mask-padding-attended (steps)",
    "mask-padding-attended (first row)",
    "place (steps)",
    "row 0 (steps)",
)


@torch.no_grad()
def run_batch(
    port: Port,
    tokens: Sequence[Tokens],
    prompts: Sequence[int],
    *,
    left: bool,
    bug: str = "",
) -> Any:
    """Feed a batch of prompts of these lengths, padded with token 7, then the rest step by step.

    Each row has as many tokens as its prompt and all steps; return the dump.
    """
    longest, count = max(prompts), min(map(len, tokens)) - max(prompts)
    room = [[7] * (longest - length) for length in prompts]
    real = [[1] * length for length in prompts]
    rows = zip(room, tokens, prompts, strict=True)
    ids = [[*pad, *row[:n]] if left else [*row[:n], *pad] for pad, row, n in rows]
    pads = [[0] * len(pad) for pad in room]
    mask = torch.tensor([p + r if left else r + p for p, r in zip(pads, real, strict=True)])
    at, cache = (mask.cumsum(1) - 1).clamp(min=0), DynamicCache()
    with capture(port.outer) as dump:
        for step in range(count + 1):
            if step:
                ids = [[row[n + step - 1]] for row, n in zip(tokens, prompts, strict=True)]
                mask = torch.cat([mask, torch.ones(len(ids), 1, dtype=mask.dtype)], dim=1)
                at = torch.tensor([[n + step - 1] for n in prompts])
            port.outer(
                torch.tensor(ids),
                attention_mask=forgotten(mask, bug, step),
                position_ids=misplaced(at, bug, step, longest),
                past_key_values=cache,
                use_cache=True,
            )
    if bug:  # what the loop believes: a mask that was forgotten tells nothing of its rows
        dump.about["batch"] = str([[*row[:n]] for row, n in zip(tokens, prompts, strict=True)])
        dump.about["padding"] = "left" if left else "right"
    return dump


def forgotten(mask: torch.Tensor, bug: str, step: int) -> torch.Tensor:
    """Return the mask that a loop hands on."""
    if bug == "mask-padding-attended" or (bug == "mask-padding-attended (steps)" and step):
        return torch.ones_like(mask)
    if bug == "mask-padding-attended (first row)":
        return mask[:1].repeat(len(mask), 1)
    return mask


def misplaced(at: torch.Tensor, bug: str, step: int, longest: int) -> torch.Tensor:
    """Return the positions that a loop hands on."""
    if bug == "place (steps)" and step:
        return torch.full_like(at, longest + step - 1)
    return at[:1].repeat(len(at), 1) if bug == "row 0 (steps)" and step else at
