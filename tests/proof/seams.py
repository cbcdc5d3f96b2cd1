"""Changing what one module of one model computes, and nothing of any other model.

A `Seam` runs a module's own forward with some of its names bound to other things: functions of the
modelling file, such as the one that rotates, and parts of the module, such as a norm. It sits on
the instance, so it goes with the model, and several changes of one module add up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Turn = Callable[..., torch.Tensor]


class Seam:
    """The forward of one module with other names and other parts than its own."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.names: dict[str, Any] = {}
        self.parts: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = type(self.module).forward
        forward = FunctionType(own.__code__, {**own.__globals__, **self.names}, own.__name__)
        forward.__defaults__, forward.__kwdefaults__ = own.__defaults__, own.__kwdefaults__
        return forward(StandIn(self.module, self.parts), *args, **kwargs)


class StandIn:
    """A module as its forward sees it, with some parts exchanged."""

    def __init__(self, module: Any, parts: dict[str, Any]):
        self.__dict__.update(parts)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def opened(module: torch.nn.Module) -> Seam:
    """Return the seam of a module that is no attention, put there when first asked for."""
    if not isinstance(module.forward, Seam):
        module.forward = Seam(module)
    return module.forward


def wrap(module: torch.nn.Module, change: Callable[..., Any]) -> None:
    """Let `change(previous, *args)` compute what a module's forward did."""
    previous = module.forward
    module.forward = lambda *args, **kwargs: change(previous, *args, **kwargs)


@dataclass(frozen=True)
class Heads:
    """What enters an attention: (B, H, L, D) three times, and how the scores are made of it.

    `weigh` turns masked scores into weights where it is not the softmax of the implementation.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float
    groups: int
    cos_sin: tuple[torch.Tensor, torch.Tensor] | None = None
    weigh: Callable[[torch.Tensor], torch.Tensor] | None = None

    def but(self, **changes: Any) -> "Heads":
        return replace(self, **changes)


class AttentionSeam(Seam):
    """The seam of an attention: what is rotated, what enters the scores, what leaves them."""

    def __init__(self, module: torch.nn.Module):
        super().__init__(module)
        self.turn: Turn = rotated
        self.before: list[Callable[[Heads], Heads]] = []
        self.after: list[Callable[[torch.Tensor], torch.Tensor]] = []
        self.rotations = 0
        self.cos_sin: Any = None
        self.names = {"ALL_ATTENTION_FUNCTIONS": self, "apply_rotary_pos_emb": self.rotate}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.rotations, self.cos_sin = 0, kwargs.get("position_embeddings")
        return super().__call__(*args, **kwargs)

    def rotate(self, *args: Any, unsqueeze_dim: int = 1) -> Any:
        """Rotate queries and keys at once, as Llama does, or one after the other, as Gemma."""
        if len(args) == 4:
            query, key, cos, sin = args
            return self.turn("q", query, cos, sin), self.turn("k", key, cos, sin)
        x, cos, sin = args
        role = "k" if self.rotations else "q"
        self.rotations += 1
        return self.turn(role, x.transpose(1, 2), cos, sin).transpose(1, 2)

    def get_interface(self, name: str, eager: Callable[..., Any]) -> Callable[..., Any]:
        """Stand for the table of implementations; eager attention is the modelling file's."""
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)
        return lambda *args, **kwargs: self.attend(attend, *args, **kwargs)

    def attend(self, attend: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, **more: Any):
        groups = q.shape[1] // k.shape[1]
        heads = Heads(q, k, v, mask, more.pop("scaling"), groups, self.cos_sin)
        for change in self.before:
            heads = change(heads)
        out = by_hand(heads) if heads.weigh else implemented(attend, module, heads, more)
        for leave in self.after:
            out = leave(out)
        return out, None


def implemented(attend: Any, module: Any, heads: Heads, more: dict[str, Any]) -> torch.Tensor:
    seen = StandIn(module, {"num_key_value_groups": heads.groups})
    parts = heads.query, heads.key, heads.value, heads.mask
    return attend(seen, *parts, scaling=heads.scaling, **more)[0]


def by_hand(heads: Heads) -> torch.Tensor:
    """Attend with scores that can be touched: (B, L, H, D)."""
    key = heads.key.repeat_interleave(heads.groups, dim=1)
    value = heads.value.repeat_interleave(heads.groups, dim=1)
    scores = heads.query @ key.transpose(-1, -2) * heads.scaling
    mask = allowed(heads) if heads.mask is None else heads.mask
    lowest = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    weights = heads.weigh(scores.clamp(min=lowest))
    return (weights.to(value.dtype) @ value).transpose(1, 2)


def allowed(heads: Heads) -> torch.Tensor:
    """Return which key each query may see, (…, L, L), of whatever form the mask has."""
    if heads.mask is None:
        length = heads.query.shape[2]
        return torch.ones(length, length, dtype=torch.bool).tril()
    return heads.mask if heads.mask.dtype == torch.bool else heads.mask == 0


def mask_like(heads: Heads, seen: torch.Tensor) -> torch.Tensor:
    """Write a mask in the form of the implementation: booleans for SDPA, added to eager scores."""
    if heads.mask is None or heads.mask.dtype == torch.bool:
        return seen
    return torch.zeros_like(seen, dtype=heads.mask.dtype).masked_fill(
        ~seen, torch.finfo(heads.mask.dtype).min
    )


def rotated(role: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate (B, H, L, D) by tables (B, L, D), in the operations of transformers."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def attention_seam(module: torch.nn.Module) -> AttentionSeam:
    if not isinstance(module.forward, AttentionSeam):
        module.forward = AttentionSeam(module)
    return module.forward


def before_attention(module: torch.nn.Module, change: Callable[[Heads], Heads]) -> None:
    attention_seam(module).before.append(change)


def after_attention(module: torch.nn.Module, change: Callable[..., torch.Tensor]) -> None:
    """Change (B, L, H, D) before its heads are merged."""
    attention_seam(module).after.append(change)


def around_turn(module: torch.nn.Module, change: Callable[..., torch.Tensor]) -> None:
    """Let `change(previous, role, x, cos, sin)` rotate; the role is "q" or "k"."""
    seam = attention_seam(module)
    previous = seam.turn
    seam.turn = lambda *args: change(previous, *args)
