"""A dump that has one row of everything without saying so: that of its prompt's last token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.families import families
from lockstep.parity.naming.names import parted, tap_named

BEHIND = ("model.norm", "transformer.ln_f", "lm_head", "logits")  # what one row alone is needed of
TOLD = "no tensor has rows for the {count} tokens of the prompt: read as those of the last alone"


def with_last_told(
    dump: Dump, tokens: Sequence[int] | None, width: int = 0
) -> tuple[Dump, list[str]]:
    """Return a dump that says its position if it has the last token's rows alone, and a line on it.

    A loop that feeds the prompt and keeps `x[-1]`, as many ports in C do, leaves such a dump. So
    does one that writes buffers in a line; then some are as long as all rows of the stream, each of
    a `width`.
    """
    prompt = list(tokens or dump.tokens or []) if dump.batch is None else []
    if len(prompt) < 2 or not is_of_last_token(dump, len(prompt)):
        return dump, []
    if width and (len(prompt) * width,) in dump.shapes.values():
        return dump, []
    about = {**dump.about, "positions": json.dumps([len(prompt) - 1])}
    return replace(dump, about=about), [TOLD.format(count=len(prompt))]


def is_of_last_token(dump: Dump, length: int) -> bool:
    """Say whether the parts of layers have one row, and nothing has a row for each token.

    Probabilities have all tokens as their keys. Where logits alone have one row, or with steps,
    the rest says how it is to be read.
    """
    if any(parted(name)[0] for name in dump.shapes):
        return False
    shapes = {name: shape for name, shape in dump.shapes.items() if tap_named(name) not in BEHIND}
    layered = [one for one in families(shapes).values() if one.layered]
    single = [prod(shape[:-1]) == 1 for one in layered for shape in one.shapes.values()]
    keyed = (length, length)
    whole = any(length in one[:-1] and one[-2:] != keyed for one in dump.shapes.values())
    return not whole and 2 * sum(single) > len(single)
