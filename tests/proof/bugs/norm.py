"""Bugs of norms: their eps, their gain, their statistics, where they stand."""

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.proof import traits
from tests.proof.norms import Unit, mean_square, norm_seam, scaled, set_eps
from tests.proof.port import Port
from tests.proof.registry import HALF, Subject, bug
from tests.proof.routing import routing
from tests.proof.seams import around_turn, attention_seam, wrap

GAIN, STATISTICS = "norm gain", "norm statistics"
EVERY, SOME = {"layers": "all"}, {"layers": "one"}
LAYERS = {"every layer": EVERY, "one layer": SOME}


def of_every_norm(id: str, when: Any = traits.rms_norm) -> Any:
    """Register what replaces the statistics of every norm: a function of float32 rows and eps."""

    def register(unit: Unit) -> Unit:
        @bug(id, site=STATISTICS, stage="parts", when=when)
        def plant(port: Port) -> None:
            for norm in port.norms():
                norm_seam(norm).unit = unit

        return unit

    return register


def other_eps(subject: Subject, eps: float) -> bool:
    return traits.rms_norm(subject) and eps != subject.config.rms_norm_eps


@bug(
    "rms-eps-wrong",
    site="eps",
    when=other_eps,
    variants={f"{eps:g}": {"eps": eps} for eps in (1e-5, 1e-6, 1e-8)},
)
def eps_wrong(port: Port, eps: float) -> None:
    for norm in port.norms():
        set_eps(norm, eps)


@bug(
    "sub-norm-eps-default",
    site="eps",
    when=lambda subject, eps: traits.qk_norm(subject) and other_eps(subject, eps),
    variants={"1e-5": {"eps": 1e-5}},
)
def sub_norm_eps(port: Port, eps: float) -> None:
    for norm in port.parts("q_norm", "k_norm"):
        set_eps(norm, eps)


@of_every_norm("norm-eps-outside-sqrt")
def eps_outside(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (mean_square(x).sqrt() + eps)


@of_every_norm("norm-root-missing")
def root_missing(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (mean_square(x) + eps)


@of_every_norm("norm-eps-inflated-by-rescale")
def eps_inflated(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide by the largest value first, and forget that eps should shrink too."""
    return scaled(x / x.abs().amax(-1, keepdim=True), eps)


@of_every_norm("norm-low-precision-accumulate")
def accumulated_half(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Sum the squares one after the other in bfloat16."""
    total = torch.zeros_like(x[..., :1], dtype=torch.bfloat16)
    for square in x.pow(2).to(torch.bfloat16).split(1, dim=-1):
        total = total + square
    return x * torch.rsqrt(total.float() / x.shape[-1] + eps)


@of_every_norm("norm-parallel-merge-wrong")
def merged_wrong(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Add the halves' sums of squares with a term that only sums of deviations need."""
    left, right = (half.pow(2).sum(-1, keepdim=True) for half in x.chunk(2, dim=-1))
    between = (right - left).pow(2) * x.shape[-1] / 4
    return x * torch.rsqrt((left + right + between) / x.shape[-1] + eps)


@of_every_norm("layernorm-for-rmsnorm")
def centred(x: torch.Tensor, eps: float) -> torch.Tensor:
    return scaled(x - x.mean(-1, keepdim=True), eps)


@bug(
    "layernorm-for-rmsnorm",
    site="qk norm",
    stage="parts",
    when=traits.qk_norm,
    variants={"queries and keys": {"names": ("q_norm", "k_norm")}},
)
def heads_centred(port: Port, names: tuple[str, ...]) -> None:
    for norm in port.parts(*names):
        norm_seam(norm).unit = centred


of_every_norm("rmsnorm-for-layernorm", traits.gpt2)(scaled)


@of_every_norm("layernorm-unbiased-variance", traits.gpt2)
def unbiased(x: torch.Tensor, eps: float) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + eps)


@bug(
    "norm-plus-one-twice",
    site="norm gain",
    when=traits.rms_norm,
    variants={"every norm": {"final": False}, "final norm alone": {"final": True}},
)
def plus_one(port: Port, final: bool) -> None:
    """Add the one that other files leave out."""
    for norm in [port.final_norm] if final else port.norms():
        if getattr(norm, "weight", None) is not None:
            norm.weight.add_(1)


@bug(
    "norm-cast-before-weight",
    site="norm rounding",
    stage="parts",
    when=traits.rms_norm,
    dtypes=HALF,
)
def cast_order(port: Port) -> None:
    """Round before the gain where the model does after, and the other way round."""
    for norm in port.norms():
        if hasattr(norm, "weight"):
            seam = norm_seam(norm)
            after = seam.gain == seam.gain_after
            seam.gain = seam.gain_before if after else seam.gain_after


@bug("layernorm-bias-dropped", site="norm gain", when=traits.gpt2, variants=LAYERS)
def bias_dropped(port: Port, layers: str) -> None:
    for norm in port.layer_norms(layers):
        norm.bias.zero_()


@bug("final-norm-missing", site="final norm", when=traits.anywhere)
def final_missing(port: Port) -> None:
    port.final_norm.forward = lambda x: x


@bug("norm-result-discarded", site="layer norms", when=traits.anywhere, variants=LAYERS)
def discarded(port: Port, layers: str) -> None:
    for norm in port.layer_norms(layers):
        norm.forward = lambda x: x


@bug("norm-applied-twice", site="layer norms", when=traits.anywhere, variants=LAYERS)
def twice(port: Port, layers: str) -> None:
    for norm in port.layer_norms(layers):
        wrap(norm, lambda previous, x: previous(previous(x)))


@bug(
    "sandwich-norm-missing",
    site="post norms",
    when=traits.gemma,
    variants={
        "both": {"names": ("post_attention_layernorm", "post_feedforward_layernorm")},
        "after attention": {"names": ("post_attention_layernorm",)},
        "after the MLP": {"names": ("post_feedforward_layernorm",)},
    },
)
def sandwich_missing(port: Port, names: tuple[str, ...]) -> None:
    for norm in port.parts(*names):
        norm.forward = lambda x: x


def exchange(port: Port, one: str, other: str) -> None:
    """Exchange the gains of two norms of each layer."""
    for left, right in zip(port.parts(one), port.parts(other), strict=True):
        left.weight, right.weight = right.weight, left.weight


@bug("norm-name-aliasing", site="norm names", when=traits.gemma)
def aliased(port: Port) -> None:
    """Take post_attention_layernorm for the norm before the MLP, as it is in Llama."""
    exchange(port, "post_attention_layernorm", "pre_feedforward_layernorm")


@bug("ffn-norms-swapped", site="norm names", when=traits.gemma)
def feedforward_swapped(port: Port) -> None:
    exchange(port, "pre_feedforward_layernorm", "post_feedforward_layernorm")


ROLES = {
    "queries and keys": {"names": ("q_norm", "k_norm")},
    "queries": {"names": ("q_norm",)},
    "keys": {"names": ("k_norm",)},
}


@bug("qk-norm-missing", site="qk norm", when=traits.qk_norm, variants=ROLES)
def qk_missing(port: Port, names: tuple[str, ...]) -> None:
    for norm in port.parts(*names):
        norm.forward = lambda x: x


@bug("qk-norm-scope", site="qk norm", stage="parts", when=traits.qk_norm)
def qk_scope(port: Port) -> None:
    """Take the statistics, whatever they are, over all heads of a token: (B, L, H, D)."""

    def over_heads(unit: Unit, x: torch.Tensor, eps: float) -> torch.Tensor:
        return unit(x.flatten(-2), eps).view_as(x)

    for norm in port.parts("q_norm", "k_norm"):
        seam = norm_seam(norm)
        seam.unit = partial(over_heads, seam.unit)


@bug("qk-norm-rope-order", site="qk norm", stage="around", when=traits.qk_norm)
def after_rope(port: Port) -> None:
    """Rotate first. The norm still runs as a module, on what is rotated."""

    def turned(turn: Any, attention: Any, role: str, x: torch.Tensor, *tables: torch.Tensor):
        norm = attention.q_norm if role == "q" else attention.k_norm
        return norm(turn(role, x, *tables).transpose(1, 2)).transpose(1, 2)

    for attention in port.attentions():
        attention_seam(attention).parts.update(q_norm=nn.Identity(), k_norm=nn.Identity())
        around_turn(attention, lambda turn, *args, a=attention: turned(turn, a, *args))


@bug("v-norm-missing", site="values", when=traits.gemma)
def value_norm_missing(port: Port) -> None:
    for norm in port.parts("v_norm"):
        norm.forward = lambda x: x


@bug("norm-wrong-side-of-projection", site="router input", when=traits.gemma_experts)
def wrong_side(port: Port) -> None:
    """Normalise the router's scores, not what it reads."""
    for router in port.routers():
        steps = routing(router)
        steps.score = lambda x, r=router, s=steps: r.norm(r.proj(x * s.scale * s.root))
