"""Bugs of the mask: what blocks, how far back a layer sees, which layers do."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import Subject, bug
from tests.proof.seams import Heads, allowed, before_attention, mask_like

MASK, WINDOW = "mask values", "window"
Added = Callable[[torch.Tensor], torch.Tensor]


def add(port: Port, added: Added) -> None:
    """Add to the scores what `added` makes of the positions that may be seen."""

    def change(heads: Heads) -> Heads:
        return heads.but(mask=added(allowed(heads)).to(heads.query.dtype))

    for attention in port.attentions():
        before_attention(attention, change)


@bug("mask-bool-added", site=MASK, when=traits.anywhere)
def bool_added(port: Port) -> None:
    add(port, lambda seen: seen.float())


@bug("mask-polarity-inverted", site=MASK, when=traits.anywhere)
def inverted(port: Port) -> None:
    """Block what may be seen. A token that then sees nothing averages everything.

    That is what the lowest finite number comes to, which transformers adds.
    """

    def change(heads: Heads) -> Heads:
        seen = allowed(heads)
        zero = heads.query.new_zeros(())
        lowest = torch.finfo(heads.query.dtype).min
        return heads.but(mask=torch.where(seen, lowest, zero))

    for attention in port.attentions():
        before_attention(attention, change)


@bug("mask-sentinel-too-small", site=MASK, when=traits.anywhere)
def sentinel_is_tiny(port: Port) -> None:
    """Block with the smallest positive number, taken for the smallest number."""
    add(port, lambda seen: torch.where(seen, 0.0, torch.finfo(torch.float32).tiny))


@bug(
    "mask-sentinel-too-small",
    site=MASK,
    when=traits.anywhere,
    variants={"-10000": {"sentinel": -1e4}},
    benign="the exponential of any score minus 10000 is nought",
)
def sentinel(port: Port, sentinel: float) -> None:
    add(port, lambda seen: torch.where(seen, 0.0, sentinel))


def see(attentions: Iterable[Any], window: int | None) -> None:
    """Let layers see `window` tokens back, the own one counted; all of them if it is None."""

    def change(heads: Heads) -> Heads:
        length = heads.query.shape[2]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        return heads.but(mask=mask_like(heads, seen.triu(1 - (window or length))))

    for attention in attentions:
        before_attention(attention, change)


@bug(
    "mask-swa-off-by-one",
    site=WINDOW,
    stage="parts",
    when=traits.window,
    variants={"one more": {"by": 1}, "one less": {"by": -1}},
)
def off_by_one(port: Port, by: int) -> None:
    config = port.config
    sliding = port.attentions("all" if config.model_type == "mistral" else "sliding")
    see(sliding, config.sliding_window + by)


def see_by_kind(port: Port, kinds: list[str]) -> None:
    for attention, kind in zip(port.attentions(), kinds, strict=True):
        see([attention], port.config.sliding_window if kind == traits.SLIDING else None)


@bug(
    "mask-layer-types-ignored",
    site=WINDOW,
    stage="parts",
    when=lambda subject, kind: (
        traits.window(subject) and (kind == traits.FULL or traits.both_kinds(subject))
    ),
    variants={
        "full everywhere": {"kind": traits.FULL},
        "sliding everywhere": {"kind": traits.SLIDING},
    },
)
def kinds_ignored(port: Port, kind: str) -> None:
    see_by_kind(port, [kind] * len(port.blocks))


@bug(
    "mask-swa-global-swapped",
    site=WINDOW,
    stage="parts",
    when=traits.both_kinds,
    variants={"full layers slide": {"both": False}, "exchanged": {"both": True}},
)
def kinds_swapped(port: Port, both: bool) -> None:
    swapped = {traits.FULL: traits.SLIDING, traits.SLIDING: traits.FULL if both else traits.SLIDING}
    see_by_kind(port, [swapped[kind] for kind in traits.kinds(port.config)])


def shifts(subject: Subject) -> bool:
    """Say whether the pattern, shifted by a layer, is another, and not the swapped one."""
    own = traits.kinds(subject.config)
    moved = [one == other for one, other in zip(own, shifted(own), strict=True)]
    return any(moved) and not all(moved)


def shifted(kinds: list[str]) -> list[str]:
    return kinds[1:] + kinds[:1]


@bug("mask-swa-parity-flipped", site=WINDOW, stage="parts", when=shifts)
def pattern_shifted(port: Port) -> None:
    see_by_kind(port, shifted(traits.kinds(port.config)))


@bug("layer-kind-index", site=WINDOW, stage="parts", when=traits.both_kinds)
def kind_of_first_layer(port: Port) -> None:
    """Give every layer the mask of layer 0."""
    see_by_kind(port, traits.kinds(port.config)[:1] * len(port.blocks))
