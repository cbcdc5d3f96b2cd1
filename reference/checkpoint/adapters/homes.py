"""Where in the base the modules of an adapter's file belong, whatever they are called there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

# A matrix that multiplies, a table that is looked up, or the experts' matrices of a layer.
Form = Literal["projection", "table", "experts"]
HEAD = "lm_head"
TABLES = ("embed_tokens", "embed_tokens_per_layer", "wte", "wpe")
TIED = ("model.embed_tokens", "transformer.wte")  # what a tied head multiplies by
PREFIXES = ("", "model.", "transformer.")
# Of multimodal models: transformers', then mlx-lm's.
WRAPPERS = ("model.language_model.", "language_model.", "model.")
# mlx-lm's own modules around a stack, and the module in which PEFT keeps the one that it wraps.
SPELLINGS = ((".switch_mlp.", ".experts."), (".switch_glu.", "."), (".base_layer", ""))
ONE_EXPERT = re.compile(r"(.+\.experts)\.([0-9]{1,5})\.(\w+_proj)")


class Base(Protocol):
    """What is asked of the checkpoint that is adapted."""

    @property
    def path(self) -> Path: ...
    def has(self, name: str) -> bool: ...
    def stored(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Home:
    """What a module of the file is in the base.

    modules  its paths: two where one pair of matrices holds gate and up
    shape    (outputs, inputs), of a table (rows, width), with the experts in front if it has any
    expert   which expert of a stack it is, None if it is all of them
    asked    what patterns of ranks call it
    """

    form: Form
    modules: tuple[str, ...]
    shape: tuple[int, ...]
    asked: str
    expert: int | None = None


def home_of(path: str, base: Base, sizes: tuple[int, int]) -> Home | None:
    """Return the home of a module, or None; `sizes` are the outputs and inputs that it has."""
    for candidate in _spellings(path):
        shape = shape_of(candidate, base)
        if shape is not None:
            return _whole(candidate, path, shape)
        if base.has(f"{candidate}.gate_proj.weight") and candidate.endswith(".experts"):
            return _fused(candidate, path, base, sizes)
        found = ONE_EXPERT.fullmatch(candidate)
        stack = None if found is None else shape_of(f"{found[1]}.{found[3]}", base)
        if found is not None and stack is not None:
            expert, module = int(found[2]), f"{found[1]}.{found[3]}"
            inside = len(stack) == 3 and expert < stack[0]
            return Home("projection", (module,), stack[1:], path, expert) if inside else None
    return None


def shape_of(module: str, base: Base) -> tuple[int, ...] | None:
    """Return the shape of what a module multiplies by; a tied head has the embedding's."""
    if base.has(f"{module}.weight"):
        return base.stored(f"{module}.weight").shape
    table = tied_table(base) if module == HEAD else None
    return None if table is None else base.stored(f"{table}.weight").shape


def tied_table(base: Base) -> str | None:
    """Return the embedding that is the head too, or None if the head has a matrix of its own."""
    if base.has(f"{HEAD}.weight"):
        return None
    return next((table for table in TIED if base.has(f"{table}.weight")), None)


def _whole(module: str, path: str, shape: tuple[int, ...]) -> Home | None:
    if len(shape) == 3:
        return Home("experts", (module,), shape, path)
    form: Form = "table" if module.rpartition(".")[2] in TABLES else "projection"
    return Home(form, (module,), shape, path) if len(shape) == 2 else None


def _fused(experts: str, path: str, base: Base, sizes: tuple[int, int]) -> Home:
    """Return the home of one of the two stacks that transformers holds.

    PEFT names neither; the second that it wraps lies in the first, in either order. Only their
    sizes tell which it is, and they always do: gate and up have twice the rows that down takes.
    """
    count, inner, width = base.stored(f"{experts}.gate_proj.weight").shape
    outer = path.removesuffix(".base_layer")
    pair = (f"{experts}.gate_proj", f"{experts}.up_proj")
    both = Home("experts", pair, (count, 2 * inner, width), f"{outer}.gate_up_proj")
    down = Home("experts", (f"{experts}.down_proj",), (count, width, inner), f"{outer}.down_proj")
    return both if sizes == (2 * inner, width) else down


def _spellings(path: str) -> Iterator[str]:
    for theirs, ours in SPELLINGS:
        path = path.replace(theirs, ours)
    bare = path
    for wrapper in WRAPPERS:
        yield bare
        bare = bare.removeprefix(wrapper)
    yield from (prefix + bare for prefix in PREFIXES)
