"""A torch model of transformers by the roles of its parts, the same for every architecture."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.proof.traits import kinds


@dataclass
class Port:
    """A model with bugs planted in it.

    `outer` is what is called: the model, or PEFT's around it. `folder` is what it was loaded from.
    """

    model: Any
    outer: Any
    folder: Path

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def base(self) -> Any:
        return getattr(self.model, "transformer", None) or self.model.model

    @property
    def blocks(self) -> list[Any]:
        return list(self.base.h if hasattr(self.base, "h") else self.base.layers)

    @property
    def embedding(self) -> Any:
        return self.model.get_input_embeddings()

    @property
    def final_norm(self) -> Any:
        return self.base.ln_f if hasattr(self.base, "ln_f") else self.base.norm

    def chosen(self, layers: str = "all") -> list[Any]:
        """Return layers: "all", "one" of them, or those of the kind "sliding" or "full"."""
        if layers == "all":
            return self.blocks
        if layers == "one":
            return self.blocks[1:2]
        named = zip(self.blocks, kinds(self.config), strict=True)
        return [block for block, kind in named if kind == f"{layers}_attention"]

    def attentions(self, layers: str = "all") -> list[Any]:
        return [
            block.attn if hasattr(block, "attn") else block.self_attn
            for block in self.chosen(layers)
        ]

    def parts(self, *names: str, layers: str = "all") -> list[Any]:
        """Return the modules that the layers call by one of these names."""
        return [
            module
            for block in self.chosen(layers)
            for path, module in block.named_modules()
            if path.rpartition(".")[2] in names
        ]

    def norms(self) -> list[Any]:
        """Return every norm, those of heads and routers too."""
        return [
            m for m in self.model.modules() if type(m).__name__.endswith(("RMSNorm", "LayerNorm"))
        ]

    def layer_norms(self, layers: str = "all") -> list[Any]:
        """Return the norms before attention and before the MLP."""
        if self.config.model_type == "gemma4_text":
            return self.parts("input_layernorm", "pre_feedforward_layernorm", layers=layers)
        names = ("input_layernorm", "post_attention_layernorm", "ln_1", "ln_2")
        return self.parts(*names, layers=layers)

    def dense_mlps(self) -> list[Any]:
        return [
            m for m in self.model.modules() if isinstance(getattr(m, "gate_proj", None), nn.Module)
        ]

    def experts(self) -> list[Any]:
        return [
            m
            for m in self.model.modules()
            if isinstance(getattr(m, "gate_up_proj", None), nn.Parameter)
        ]

    def routers(self) -> list[Any]:
        return self.parts("gate", "router")

    def frequencies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the kind of layer ("" if all are alike) and the frequencies of its rope."""
        rotary = self.base.rotary_emb
        for name, buffer in rotary.named_buffers():
            if name.endswith("inv_freq") and "original" not in name:
                yield name.removesuffix("inv_freq").removesuffix("_"), buffer

    def set_frequencies(self, kind: str, value: torch.Tensor) -> None:
        rotary, prefix = self.base.rotary_emb, f"{kind}_" if kind else ""
        for name in (f"{prefix}inv_freq", f"{prefix}original_inv_freq"):
            getattr(rotary, name).copy_(value)

    def stored(self, name: str) -> torch.Tensor:
        """Return a tensor of the folder as it is stored."""
        from safetensors import safe_open

        with safe_open(self.folder / "model.safetensors", framework="pt") as file:
            return file.get_tensor(name)
