"""Logits under a name that nobody knows: the one tensor that is as wide as the vocabulary."""

from collections.abc import Iterable, Mapping

from lockstep.reference.checkpoint.errors import show

Shape = tuple[int, ...]
LOGITS, HEAD = "logits", "lm_head"
SAID = "{name} is read as logits: nothing else is as wide as the vocabulary"


def logits_by_width(
    left: Mapping[str, Shape], known: Mapping[str, Shape], taken: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Return which of the names that are `left` is that of the logits, and a line to say so.

    `known` has the model's taps with their shapes, `taken` those that other names mean. None is,
    if logits are there already, if two are as wide, or if something else in the model is too.
    """
    if LOGITS not in known or {LOGITS, HEAD} & {*taken}:
        return {}, []
    width, tokens = known[LOGITS][-1], len(known[LOGITS])
    if any(shape[-1:] == (width,) for tap, shape in known.items() if tap not in (LOGITS, HEAD)):
        return {}, []
    wide = [name for name, shape in left.items()
            if shape[-1:] == (width,) and len(shape) <= tokens]  # fmt: skip
    if len(wide) != 1:
        return {}, []
    return {wide[0]: LOGITS}, [SAID.format(name=show(wide[0], 48))]
