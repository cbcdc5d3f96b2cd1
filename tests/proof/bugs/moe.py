"""Bugs of mixtures of experts: what the router reads, whom it chooses, how much each counts."""

from typing import Any

import torch

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import bug
from tests.proof.routing import Routing, routing
from tests.proof.seams import wrap

CHOICE, SHARES, INPUT = "router choice", "router weights", "router input"


def steps(port: Port) -> list[Routing]:
    return [routing(router) for router in port.routers()]


def normalised(subject: Any, **_: Any) -> bool:
    return traits.experts(subject) and getattr(subject.config, "norm_topk_prob", True)


def not_normalised(subject: Any, **_: Any) -> bool:
    return traits.experts(subject) and not getattr(subject.config, "norm_topk_prob", True)


@bug("moe-renorm-missing", site=SHARES, when=normalised)
def renorm_missing(port: Port) -> None:
    for one in steps(port):
        one.normalised = False


@bug("moe-renorm-spurious", site=SHARES, when=not_normalised)
def renorm_spurious(port: Port) -> None:
    for one in steps(port):
        one.weigh = lambda scores, index: scores.gather(-1, index).softmax(-1, torch.float32)


@bug(
    "moe-renorm-wrong-axis",
    site=SHARES,
    when=normalised,
    variants={"over tokens": {"axes": (0,)}, "over all": {"axes": (0, 1)}},
)
def renorm_of_others(port: Port, axes: tuple[int, ...]) -> None:
    """Divide by the sum over the prompt's tokens."""

    def weigh(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        shares = scores.softmax(-1, torch.float32).gather(-1, index)
        return shares / shares.sum(axes, keepdim=True)

    for one in steps(port):
        one.weigh = weigh


@bug("moe-raw-logits-as-weights", site=SHARES, when=traits.experts)
def raw_scores(port: Port) -> None:
    for one in steps(port):
        one.weigh = lambda scores, index: scores.gather(-1, index)


@bug("moe-sigmoid-vs-softmax", site=SHARES, when=traits.experts)
def sigmoid(port: Port) -> None:
    """Weigh by sigmoids, normalised where the model normalises."""

    def weigh(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        shares = scores.float().sigmoid().gather(-1, index)
        once = getattr(port.config, "norm_topk_prob", True)
        return shares / shares.sum(-1, keepdim=True) if once else shares

    for one in steps(port):
        one.weigh = weigh


@bug(
    "moe-renorm-epsilon",
    site=SHARES,
    when=normalised,
    dtypes=("float32",),
)
def renorm_eps(port: Port) -> None:
    """Add a millionth to the sum, which half precision cannot tell."""

    def weigh(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        shares = scores.softmax(-1, torch.float32).gather(-1, index)
        return shares / (shares.sum(-1, keepdim=True) + 1e-6)

    for one in steps(port):
        one.weigh = weigh


@bug("moe-selects-lowest", site=CHOICE, when=traits.experts)
def lowest(port: Port) -> None:
    for one in steps(port):
        one.choose = lambda scores, k: scores.topk(k, largest=False).indices


@bug(
    "moe-topk-partition-kth",
    site=CHOICE,
    when=traits.experts,
    variants={"without the best": {"lost": 0}, "without the second": {"lost": 1}},
)
def partition(port: Port, lost: int) -> None:
    """Take k of the k + 1 best, for a partition orders nothing inside."""

    def choose(scores: torch.Tensor, k: int) -> torch.Tensor:
        return scores.topk(k + 1).indices[..., [rank for rank in range(k + 1) if rank != lost]]

    for one in steps(port):
        one.choose = choose


@bug(
    "moe-router-precision",
    site="router precision",
    when=traits.experts,
    dtypes=("float32", "float16"),
)
def router_half(port: Port) -> None:
    """Read, score and weigh in bfloat16."""

    def half(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16).to(x.dtype)

    for one in steps(port):
        one.before.append(half)
        one.score = lambda x, score=one.score: half(score(x))
        one.after.append(half)


@bug("moe-weight-on-output-vs-input", site="expert weights", when=traits.experts)
def weight_on_input(port: Port) -> None:
    """Scale what an expert reads, where its output should be."""

    def run(experts: Any, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor):
        one = torch.ones_like(weights[:, :1])
        parts = zip(index.split(1, dim=1), weights.split(1, dim=1), strict=True)
        return sum(experts((x * weight).to(x.dtype), chosen, one) for chosen, weight in parts)

    for experts in port.experts():
        wrap(experts, run)


@bug(
    "moe-expert-order",
    site="expert order",
    stage="weights",
    when=traits.experts,
    variants={
        "as text": {"key": str, "names": ("gate_up_proj", "down_proj")},
        "from the last on, the last matrices alone": {
            "key": lambda expert: -expert,
            "names": ("down_proj",),
        },
    },
)
def order(port: Port, key: Any, names: tuple[str, ...]) -> None:
    """Stack experts in the order of their names as text: 0, 1, 10, 11, 2 …; or in reverse."""
    for experts in port.experts():
        stacked = sorted(range(experts.num_experts), key=key)
        for name in names:
            value = getattr(experts, name)
            value.copy_(value[stacked])


@bug("moe-per-expert-scale-missing", site="expert scale", when=traits.gemma_experts)
def expert_scale_missing(port: Port) -> None:
    for router in port.routers():
        router.per_expert_scale.fill_(1)


@bug(
    "moe-router-input-scale-missing",
    site="router scale",
    when=traits.gemma_experts,
    variants={
        "root": {"names": ("root",)},
        "scale": {"names": ("scale",)},
        "both": {"names": ("root", "scale")},
    },
)
def input_scale_missing(port: Port, names: tuple[str, ...]) -> None:
    for one in steps(port):
        vars(one).update(dict.fromkeys(names, 1.0))


@bug(
    "moe-router-input-wrong",
    site=INPUT,
    when=traits.gemma_experts,
    variants={
        "the experts' norm": {"norm": "pre_feedforward_layernorm_2"},
        "the dense MLP's norm": {"norm": "pre_feedforward_layernorm"},
    },
)
def routed_by_normed_input(port: Port, norm: str) -> None:
    """Let the router read what the experts read, or the MLP beside them."""
    for block in port.blocks:
        # The function, not the module: its hooks see what the experts read alone.
        routing(block.router).before.append(getattr(block, norm).forward)


def remembering(module: Any) -> dict[str, torch.Tensor]:
    """Return what will hold the newest input and output of a module."""
    held: dict[str, torch.Tensor] = {}

    def run(own: Any, x: torch.Tensor) -> torch.Tensor:
        held.update(input=x, output=own(x))
        return held["output"]

    wrap(module, run)
    return held


def qwen_experts(subject: Any, **_: Any) -> bool:
    return traits.experts(subject) and not traits.gemma_experts(subject)


STREAMS = {
    "before its norm": {"norm": "post_attention_layernorm", "which": "input"},
    "attention's": {"norm": "input_layernorm", "which": "output"},
    "before attention": {"norm": "input_layernorm", "which": "input"},
}


@bug("moe-router-input-wrong", site=INPUT, when=qwen_experts, variants=STREAMS, stage="around")
def routed_by_other_stream(port: Port, norm: str, which: str) -> None:
    for block in port.blocks:
        if not isinstance(getattr(block.mlp, "gate", None), torch.nn.Module):
            continue  # a dense layer
        held = remembering(getattr(block, norm))
        routing(block.mlp.gate).before.append(lambda x, held=held: held[which].reshape(x.shape))


def fed_by(held: dict[str, torch.Tensor], which: str) -> Any:
    def run(experts: Any, x: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
        return experts(held[which].reshape(x.shape), *routing)

    return run


@bug(
    "ffn-norms-swapped",
    site="experts' input",
    when=traits.gemma_experts,
    variants={"the experts read the MLP's": {}},
    stage="around",
)
def experts_beside(port: Port) -> None:
    """Let the experts read what the MLP beside them reads."""
    for block in port.blocks:
        wrap(block.experts, fed_by(remembering(block.pre_feedforward_layernorm), "output"))


@bug(
    "moe-experts-input-wrong",
    site="experts' input",
    when=qwen_experts,
    variants={name: STREAMS[name] for name in ("before its norm", "attention's")},
    stage="around",
)
def experts_of_other_stream(port: Port, norm: str, which: str) -> None:
    for block in port.blocks:
        if hasattr(block.mlp, "experts"):
            wrap(block.mlp.experts, fed_by(remembering(getattr(block, norm)), which))


@bug(
    "moe-sum-missing",
    site="experts' sum",
    when=traits.experts,
    variants={"the highest stays": {"last": "amax"}, "the lowest stays": {"last": "amin"}},
)
def assigned(port: Port, last: str) -> None:
    """Let each expert of a token write over what the one before it said."""

    def run(experts: Any, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor):
        stays = index == getattr(index, last)(-1, keepdim=True)
        return experts(x, index, weights * stays)

    for experts in port.experts():
        wrap(experts, run)
