"""Logits that are wider than the vocabulary: the head was padded to a multiple that suits a device.

What is behind the vocabulary is no token's, and there is nothing to compare it with.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from lockstep.parity.dumps.dump import Dump

Shape = tuple[int, ...]
LOGITS, HEAD = "logits", "lm_head"
GRANULE, MOST = 8, 1024  # a padded width is a multiple of the one, and pads by less than the other
SAID = (
    "{count} of {wide} columns of the logits are behind the vocabulary, and left out: a padded "
    "head, whose columns no choice of a token may see"
)


def within_vocabulary(
    dump: Dump, known: Mapping[str, Shape], tap_of: Callable[[str], str]
) -> tuple[Dump, list[str]]:
    """Return a dump whose logits are as wide as the vocabulary, and a line if they were not.

    `known` has the model's taps with their shapes, `tap_of` says which of them a name means.
    """
    width = known.get(LOGITS, (0,))[-1]
    wide = {
        name: (*shape[:-1], width)
        for name, shape in dump.shapes.items()
        if tap_of(name) in (LOGITS, HEAD) and shape and is_padded(shape[-1], width)
    }
    if not width or not wide:
        return dump, []

    def read(name: str) -> np.ndarray:
        return dump.read(name)[..., :width] if name in wide else dump.read(name)

    found = max(dump.shapes[name][-1] for name in wide)
    shapes = {name: wide.get(name, shape) for name, shape in dump.shapes.items()}
    told = SAID.format(count=found - width, wide=found)
    return replace(dump, shapes=shapes, read=read, parted=None), [told]


def is_padded(wide: int, width: int) -> bool:
    return width < wide < width + MOST and wide % GRANULE == 0
