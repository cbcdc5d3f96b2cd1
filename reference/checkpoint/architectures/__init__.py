"""What each architecture's config.json means and which tensors it needs: one a file.

A file is named after `model_type` and has: `CLASSES`, the class names that config.json may give;
`MODEL`, the file in `reference/models` and `fast/models` that runs it; `IGNORED`, keys that change
no number here, with the reason; `parse(fields, ignore, warnings)`, which returns its config;
`tensors(config)`, name -> shape in the order of the forward pass; and `tolerated(name, config)`,
why a tensor that no layer needs may be there, or None. It may have `sources(config, files)`: where
tensors lie that are not in the files under their own names, given the shapes of what is there; and
`position_limit(config)`: how many positions have an embedding, where positions are looked up; and
`model_of(config)`, where the config decides which file runs it, and not `MODEL` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.sources import Source

Shapes = dict[str, tuple[int, ...]]


class Config(Protocol):
    """What is asked of every architecture's config, whatever its own keys are called."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def tie_word_embeddings(self) -> bool: ...


@dataclass(frozen=True)
class Architecture:
    """The functions of one architecture's file."""

    name: str
    model: str
    model_of: Callable[[Any], str]
    ignored: Mapping[str, str]
    parse: Callable[[Fields, Collection[str], list[str]], Any]
    tensors: Callable[[Any], Shapes]
    tolerated: Callable[[str, Any], str | None]
    sources: Callable[[Any, Shapes], dict[str, Source]]
    position_limit: Callable[[Any], int | None]


def architecture_names() -> list[str]:
    """Return the values of `model_type` that are read."""
    return sorted(module.name for module in iter_modules(__path__))


def architecture_of(fields: Fields) -> Architecture:
    """Return the architecture that config.json names.

    Raises InputError if its `model_type` or its class is none of those that are read.
    """
    known = architecture_names()
    name = fields.get("model_type")
    if not isinstance(name, str) or name not in known:
        fields.refuse("model_type", f"names an unsupported architecture, {_either(known)} is read")
    module = import_module(f"lockstep.reference.checkpoint.architectures.{name}")
    classes = fields.get("architectures")
    if classes is not None and classes not in [[one] for one in module.CLASSES]:
        demand = f"names an unsupported architecture, {_either(module.CLASSES)} is read"
        fields.refuse("architectures", demand)
    return Architecture(
        name,
        module.MODEL,
        getattr(module, "model_of", lambda config: module.MODEL),
        module.IGNORED,
        module.parse,
        module.tensors,
        module.tolerated,
        getattr(module, "sources", lambda config, files: {}),
        getattr(module, "position_limit", lambda config: None),
    )


def _either(names: Collection[str]) -> str:
    return " or ".join(names)
