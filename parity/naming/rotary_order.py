"""Queries and keys in the order in which neighbours turn together, put into halves of a head.

llama.cpp keeps the rows of Llama's and Mistral's queries and keys so; here, as in Hugging Face's
files, number j of a head turns with number j + D/2. A dump says it in its metadata.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lockstep.parity.dumps.dump import Dump

NEIGHBOURS = "rotary_neighbours"  # the width of a head in which neighbours turn together
TURNING = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.q_rope", "self_attn.k_rope")
PLAN = "queries and keys put from neighbours that turn together into halves of a head"


def in_halves(dump: Dump, tap_of: Callable[[str], str]) -> tuple[Dump, list[str]]:
    """Return a dump whose queries and keys have the order of their taps, and a line that says so.

    A dump that does not say that neighbours turn together is returned as it is.
    """
    width = head_width(dump.about.get(NEIGHBOURS, ""))
    turning = {name for name in dump.shapes if tap_of(name).endswith(TURNING)}
    if not width or not turning:
        return dump, []

    def read(name: str) -> np.ndarray:
        array = dump.read(name)
        if name not in turning or not array.ndim or array.shape[-1] % width:
            return array
        pairs = array.reshape(*array.shape[:-1], -1, width // 2, 2)
        return pairs.swapaxes(-1, -2).reshape(array.shape)

    return replace(dump, read=read, parted=None), [PLAN]


def head_width(said: str) -> int:
    """Return the width of a head that a dump says, 0 where it says none that can be."""
    width = int(said) if said.isascii() and said.isdecimal() and len(said) < 6 else 0
    return 0 if width % 2 else width
