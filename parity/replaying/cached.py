"""The taps of a cache: what a layer's store holds behind a pass."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.parity.naming.names import CACHED, NUMBER

STORING = re.compile(
    rf"(model\.layers\.{NUMBER}\.self_attn|transformer\.h\.{NUMBER}\.attn)\.(?:k_proj|c_attn)"
)
LAYER = re.compile(rf"(?:model\.layers|(?P<gpt2>transformer\.h))\.(?P<layer>{NUMBER})")
OTHER_SLOTS = "its slots are not one for each token: `explain` finds the tokens in them"


def attentions(taps: Sequence[str]) -> list[str]:
    """Return the paths of the attentions that have keys of their own, by the taps of a model."""
    found = (STORING.fullmatch(tap) for tap in taps)
    return [*dict.fromkeys(match[1] for match in found if match)]


def caches_behind(stage: str, cache: Any) -> Iterator[tuple[str, Any]]:
    """Yield the taps of a layer's cache and what it holds, (B, G, S, D), behind that stage.

    Stores that pack what they keep have none, and layers that take another's keys.
    """
    match = LAYER.fullmatch(stage)
    if match is None:
        return
    path, length = f"{stage}.{'attn' if match['gpt2'] else 'self_attn'}", cache.positions.length
    for suffix, stores in zip(CACHED, (cache.keys, cache.values), strict=True):
        arrays = stores[int(match["layer"])].arrays()
        if len(arrays) == 1 and arrays[0] is not None:
            array = arrays[0]
            yield path + suffix, array if array.shape[2] == length else array[:, :, :length]
