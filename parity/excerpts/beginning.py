"""The first tokens of a prompt, read as a shorter prompt: they see no others, so it is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.fed import check_told, told_apart
from lockstep.parity.dumps.parts import Parts, held
from lockstep.parity.excerpts.dumped import excerpt_in
from lockstep.parity.excerpts.excerpt import Excerpt, Shape
from lockstep.parity.excerpts.last_token import with_last_told
from lockstep.parity.judging.padding import OVER_KEYS
from lockstep.parity.naming.names import CACHED, step_of, tap_named

KNOWN = ("format", "version", "tokens", "batch", "padding", "dtype", "backend", "library",
         "rotary_neighbours", "model", "adapter", "positions")  # fmt: skip
STEPS = ("decoded", "batch_decoded", "step_lengths")
BY_LENGTH = ("dynamic", "longrope")  # kinds of rope whose angles depend on the length of the text


def is_shorter_prompt(excerpt: Excerpt, dump: Dump, rope: str | None) -> bool:
    """Say whether a dump of these tokens is that of a shorter prompt.

    Steps see the whole prompt, and two kinds of `rope` know how long it is.
    """
    if not excerpt.is_beginning or (rope in BY_LENGTH and not excerpt.is_whole):
        return False
    return dump.padding == "right" and not any(map(step_of, dump.shapes))


def as_shorter_prompt(dump: Dump, excerpt: Excerpt) -> Dump:
    """Return the dump that the prompts would give if they ended behind these tokens."""
    about = {key: text for key, text in dump.about.items() if key != "positions"}
    for key in ("tokens", "batch"):
        if key in about:
            about[key] = json.dumps(shortened(json.loads(about[key]), excerpt))
    shapes = {name: shape_of(name, shape, excerpt) for name, shape in dump.shapes.items()}
    return replace(dump, shapes=shapes, read=partial(read_short, dump, shapes), about=about,
                   parted=partial(parts_short, dump, shapes))  # fmt: skip


def as_explained(
    dump: Dump, tokens: Sequence[int] | None, config: Any
) -> tuple[Dump, Sequence[int] | None, list[str], Excerpt | None]:
    """Return a dump that `explain` can judge, the prompt's ids beside it, what to say of it, and
    which tokens it has, if it has to be judged as one of some tokens.

    The first tokens alone are a shorter prompt, whose text and answer nobody knows.
    Raises: InputError if `tokens` are given with a batch, which has several prompts, or are not
    those that the dump says.
    """
    if tokens is not None:
        check_told(dump, tokens)
    alone: list[str] = []
    if "positions" not in dump.about:
        dump, alone = with_last_told(dump, tokens, getattr(config, "hidden_size", 0))
    if "positions" not in dump.about:
        return dump, tokens, [], None
    if tokens is not None and dump.tokens is None:
        prompt = json.dumps(told_apart(dump, tokens)[0])
        dump = replace(dump, about={**dump.about, "tokens": prompt})
    prompts = dump.batch or ([dump.tokens] if dump.tokens else None)
    excerpt = excerpt_in(dump, prompts)
    assert excerpt is not None
    if excerpt.is_whole:
        about = {key: text for key, text in dump.about.items() if key != "positions"}
        return replace(dump, about=about), tokens, [], None
    rope = getattr(getattr(config, "rope_scaling", None), "kind", None)
    known = {key: text for key, text in dump.about.items() if key in KNOWN}
    count, longest = max(excerpt.counts), excerpt.longest
    if not is_shorter_prompt(excerpt, dump, rope):
        ends = len(excerpt.rows) == 1 and excerpt.rows[0][-1] == longest - 1
        said = f"of the prompt these are judged: {excerpt.which}"
        told = replace(dump, about=known | fed_of(dump))
        return dump if ends else told, tokens, alone or [said], excerpt
    said = f"the first {count} of {longest} tokens are judged, as a prompt of their own"
    return as_shorter_prompt(replace(dump, about=known), excerpt), None, [said], None


def fed_of(dump: Dump) -> dict[str, str]:
    """Return what a dump says of its steps."""
    return {key: text for key, text in dump.about.items() if key in STEPS}


def shortened(said: list[Any], excerpt: Excerpt) -> list[Any]:
    """Cut the ids of a prompt, or of each prompt of a batch."""
    if not said or not isinstance(said[0], list):
        return said[: excerpt.counts[0]]
    return [row[:count] for row, count in zip(said, excerpt.counts, strict=True)]


def shape_of(name: str, shape: Shape, excerpt: Excerpt) -> Shape:
    """Return the shape without the keys, or the slots, of later tokens."""
    tap, longest, count = tap_named(name), excerpt.longest, max(excerpt.counts)
    if tap.endswith(OVER_KEYS) and shape[-1:] == (longest,):
        return (*shape[:-1], count)
    if tap.endswith(CACHED) and shape[-2:-1] == (longest,):
        return (*shape[:-2], count, shape[-1])
    return shape


def read_short(dump: Dump, shapes: Mapping[str, Shape], name: str) -> np.ndarray:
    return dump.read(name)[tuple(map(slice, shapes[name]))]


def parts_short(dump: Dump, shapes: Mapping[str, Shape], name: str) -> Parts:
    same = shapes[name] == dump.shapes[name]
    return dump.parts(name) if same else held(read_short(dump, shapes, name))
