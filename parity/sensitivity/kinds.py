"""Kinds of matrices: what all layers have under one name, or all that one layer has."""

from __future__ import annotations

import re
from collections.abc import Callable

LAYER = re.compile(r"(.*?\.)?(layers|h)\.([0-9]+)\.(.+)")
ALL = "all of them"


def by_kind(module: str) -> str:
    """`model.layers.3.mlp.up_proj` is of the kind `mlp.up_proj`."""
    found = LAYER.fullmatch(module)
    return found[4] if found else module.rpartition(".")[2]


def by_layer(module: str) -> str:
    """`model.layers.3.mlp.up_proj` is in `layer 3`; a table is by itself."""
    found = LAYER.fullmatch(module)
    return f"layer {found[3]}" if found else module.rpartition(".")[2]


def by_module(module: str) -> str:
    return module


WAYS: dict[str, Callable[[str], str]] = {"kind": by_kind, "layer": by_layer, "module": by_module}


def kinds(modules: list[str], by: str) -> dict[str, list[str]]:
    """Return kind -> modules, in the order in which they are given, and last all of them."""
    found: dict[str, list[str]] = {}
    for module in modules:
        found.setdefault(WAYS[by](module), []).append(module)
    return found | {ALL: [module for members in found.values() for module in members]}
