"""Bugs of the activation, of the gate, and of the ends of a layer."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import bug
from tests.proof.seams import Seam, StandIn, opened, wrap

PLACES = {
    "everywhere": {"place": "all"},
    "dense alone": {"place": "dense"},
    "experts alone": {"place": "experts"},
    "own inputs alone": {"place": "own"},
}


class Activation(nn.Module):
    """A function as a module, where the right activation stood."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def activate(port: Port, place: str, function) -> None:
    """Use another function in all activations, or in those of one place."""
    owners = {
        "dense": [*port.dense_mlps(), *port.parts("mlp") * traits.gpt2(port)],
        "experts": port.experts(),
        "own": [block for block in port.blocks if hasattr(block, "per_layer_input_gate")],
    }
    chosen = owners if place == "all" else [place]
    for owner in [owner for name in chosen for owner in owners[name]]:
        setattr(owner, "act" if hasattr(owner, "act") else "act_fn", Activation(function))


def placed(subject, place: str) -> bool:
    """Say whether a place is there, and is not everywhere."""
    sparse, own = traits.experts(subject), traits.own_inputs(subject)
    return {"all": True, "dense": sparse or own, "experts": sparse, "own": own}[place]


def gelu_tanh(subject, place: str = "all") -> bool:
    return placed(subject, place) and (traits.gemma(subject) or traits.gpt2(subject))


def silu(subject, place: str = "all") -> bool:
    return placed(subject, place) and traits.llama_mlp(subject)


@bug("act-silu-vs-gelu", site="activation", when=gelu_tanh, variants=PLACES)
def silu_for_gelu(port: Port, place: str) -> None:
    activate(port, place, F.silu)


@bug(
    "act-silu-vs-gelu",
    site="activation",
    when=silu,
    variants={"gelu for silu": {"place": "all"}},
)
def gelu_for_silu(port: Port, place: str) -> None:
    activate(port, place, lambda x: F.gelu(x, approximate="tanh"))


@bug("gelu-erf-vs-tanh", site="activation", when=gelu_tanh, variants=PLACES)
def gelu_erf(port: Port, place: str) -> None:
    activate(port, place, F.gelu)


@bug("gelu-quick", site="activation", when=gelu_tanh, variants=PLACES)
def gelu_quick(port: Port, place: str) -> None:
    activate(port, place, lambda x: x * torch.sigmoid(1.702 * x))


@bug("gelu-missing-x-factor", site="activation", when=gelu_tanh)
def gelu_without_x(port: Port) -> None:
    def gate(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))

    activate(port, "all", gate)


@bug(
    "swiglu-gate-up-swapped",
    site="gate and up",
    when=lambda subject, place: placed(subject, place) and not traits.gpt2(subject),
    variants={key: PLACES[key] for key in ("everywhere", "dense alone", "experts alone")},
)
def gate_up_swapped(port: Port, place: str) -> None:
    """Activate what is linear, and leave the gate as it is."""
    for mlp in port.dense_mlps() * (place != "experts"):
        opened(mlp).parts.update(gate_proj=mlp.up_proj, up_proj=mlp.gate_proj)
    for experts in port.experts() * (place != "dense"):
        experts.gate_up_proj.copy_(experts.gate_up_proj.roll(experts.intermediate_dim, dims=1))


@bug(
    "layer-scalar-missing",
    site="layer scalar",
    when=traits.gemma,
    variants={"every layer": {"layers": "all"}, "one layer": {"layers": "one"}},
)
def layer_scalar_missing(port: Port, layers: str) -> None:
    for block in port.chosen(layers):
        block.layer_scalar.fill_(1)


@bug("layer-scalar-missing", site="layer scalar", when=traits.gemma, stage="around")
def layer_scalar_going_in(port: Port) -> None:
    """Multiply what goes into a layer, and not what comes out of it."""
    for block in port.blocks:
        number = block.layer_scalar.clone()
        block.layer_scalar.fill_(1)
        wrap(block, lambda own, x, *more, number=number, **rest: own(x * number, *more, **rest))


PRODUCTS = {
    "the gate alone": {"product": lambda gate, up, act: gate},
    "up alone": {"product": lambda gate, up, act: up},
    "added": {"product": lambda gate, up, act: gate + up},
    "both activated": {"product": lambda gate, up, act: gate * act(up)},
}


@bug("gated-product-wrong", site="gated product", when=traits.dense_mlp, variants=PRODUCTS)
def product_wrong(port: Port, product) -> None:
    for mlp in port.dense_mlps():
        wrap(mlp, partial(put_together, mlp, product))


def put_together(mlp, product, previous, x: torch.Tensor) -> torch.Tensor:
    """Put gate and up together otherwise, by the parts that another bug put in their places."""
    own = StandIn(mlp, previous.parts if isinstance(previous, Seam) else {})
    return own.down_proj(product(own.act_fn(own.gate_proj(x)), own.up_proj(x), own.act_fn))
