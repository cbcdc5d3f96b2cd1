"""Bugs of adapters: each reads the file or its config wrongly, before PEFT applies it."""

import re
from typing import Any

import torch

from tests.proof.port import Port
from tests.proof.registry import Subject, bug

Config, Tensors = dict[str, Any], dict[str, torch.Tensor]
SCALE = "adapter scale"


def plain(subject: Subject, **_: Any) -> bool:
    return subject.adapter is not None and not subject.adapter["use_rslora"]


def adapter_bug(id: str, site: str, when: Any = lambda subject, **_: True, **more: Any):
    return bug(id, site=site, stage="adapter", when=when, **more)


@adapter_bug("lora-scale-divided-again", SCALE)
def divided_again(config: Config, tensors: Tensors) -> Tensors:
    config["lora_alpha"] /= config["r"]
    return tensors


@adapter_bug("lora-alpha-not-divided", SCALE, plain)
def not_divided(config: Config, tensors: Tensors) -> Tensors:
    config["lora_alpha"] *= config["r"]
    return tensors


@adapter_bug(
    "lora-rslora-ignored",
    SCALE,
    lambda subject, rslora: plain(subject) == rslora,
    variants={"ignored": {"rslora": False}, "taken for granted": {"rslora": True}},
)
def rank_stabilised(config: Config, tensors: Tensors, rslora: bool) -> Tensors:
    config["use_rslora"] = rslora
    return tensors


@adapter_bug("lora-factors-transposed", "adapter factors")
def transposed(config: Config, tensors: Tensors) -> Tensors:
    """Read both factors as the other layout has them, and turn them to make them fit."""
    return {
        name: turned(value) if "lora_" in name else value
        for name, value in tensors.items()
        if value.ndim
    }


def turned(value: torch.Tensor) -> torch.Tensor:
    axes = tuple(reversed(range(value.ndim)))
    return value.reshape(*value.shape[::-1]).permute(axes).contiguous()


@adapter_bug(
    "lora-not-applied",
    "adapter presence",
    variants={"anywhere": {"where": ""}, "in one layer": {"where": "layers.2."}},
)
def not_applied(config: Config, tensors: Tensors, where: str) -> Tensors:
    """Find no adapter for modules: their second factor stays nought."""
    return {
        name: torch.zeros_like(value) if "lora_B" in name and where in name else value
        for name, value in tensors.items()
    }


@adapter_bug(
    "lora-layer-offset",
    "adapter layers",
    lambda subject: bool((subject.adapter or {}).get("layers_to_transform")),
)
def counted_from_start(config: Config, tensors: Tensors) -> Tensors:
    """Put what was trained for the last layers on the first."""
    first = min(config["layers_to_transform"])
    config["layers_to_transform"] = [one - first for one in config["layers_to_transform"]]
    return {
        re.sub(r"layers\.(\d+)", lambda match: f"layers.{int(match[1]) - first}", name): value
        for name, value in tensors.items()
    }


@adapter_bug(
    "dora-magnitude-missing",
    "adapter magnitude",
    lambda subject: bool((subject.adapter or {}).get("use_dora")),
)
def magnitude_missing(config: Config, tensors: Tensors) -> Tensors:
    config["use_dora"] = False
    return {name: value for name, value in tensors.items() if "magnitude" not in name}


@bug(
    "lora-merge-rounding",
    site="adapter presence",
    when=lambda subject: subject.adapter is not None and not subject.adapter.get("use_dora"),
)
def merged_rounded(port: Port) -> None:
    """Add the adapter to the weights in bfloat16, and forget it."""
    for name, module in list(port.model.named_modules()):
        if hasattr(module, "get_delta_weight"):
            delta = module.get_delta_weight("default").to(torch.bfloat16)
            plain = module.base_layer
            plain.weight.copy_(plain.weight.to(torch.bfloat16) + delta)
            port.model.set_submodule(name, plain)
