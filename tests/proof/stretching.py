"""Loops whose positions stretch with the text, by another length than that of the text so far.

The frequencies of any length are those of transformers' own functions; only the length is wrong.
See `decoding.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.proof.decoding import Loop
from tests.proof.seams import Heads, around_turn, before_attention, rotated, wrap


def tables_of(loop: Loop, x: torch.Tensor, at: torch.Tensor, length: int) -> Any:
    """Return cosines and sines of positions (B, L) in a text of so many tokens."""
    kind = loop.port.config.rope_parameters["rope_type"]
    turns, factor = ROPE_INIT_FUNCTIONS[kind](loop.port.config, "cpu", seq_len=length)
    angles = at[..., None].float() * turns
    angles = torch.cat([angles, angles], dim=-1)
    return tuple((wave(angles) * factor).to(x.dtype) for wave in (torch.cos, torch.sin))


def of_length(length: Callable[[Loop], int]) -> Callable[[Loop], None]:
    """Let steps turn as in a text of another length."""

    def plant(loop: Loop) -> None:
        def forward(previous: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
            right = previous(x, position_ids)
            return tables_of(loop, x, position_ids, length(loop)) if loop.in_step else right

        wrap(loop.port.base.rotary_emb, forward)

    return plant


def anew(loop: Loop) -> None:
    """Keep keys unturned, and turn them all by the stretch of the step that reads them."""

    def turn(previous: Any, role: str, x: torch.Tensor, cos: Any, sin: Any, layer: int) -> Any:
        if role == "k":
            held = loop.kept.get(layer)
            loop.kept[layer] = x if held is None else torch.cat([held, x], dim=2)
        return previous(role, x, cos, sin)

    def changed(layer: int, heads: Heads) -> Heads:
        keys = loop.kept[layer]
        at = torch.arange(keys.shape[2])[None]
        return heads.but(key=rotated("k", keys, *tables_of(loop, keys, at, keys.shape[2])))

    for layer, module in enumerate(loop.port.attentions()):
        around_turn(module, lambda previous, *args, layer=layer: turn(previous, *args, layer=layer))
        before_attention(module, lambda heads, layer=layer: changed(layer, heads))


# Each by the name of the catalogue's variant.
STRETCH_BUGS: dict[str, Callable[[Loop], None]] = {
    "by the prompt's length, in steps too": of_length(lambda loop: loop.prompt),
    "by the length before the step": of_length(lambda loop: loop.seen),
    "by what a step is fed alone": of_length(lambda loop: loop.now),
    "cached keys are turned anew in every step": anew,
}
