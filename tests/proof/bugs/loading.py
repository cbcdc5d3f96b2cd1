"""Bugs of reading a checkpoint: the wrong layout, the wrong tensor, or none."""

import torch

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import Subject, bug

LAYERS = {"every layer": {"layers": "all"}, "one layer": {"layers": "one"}}
WEIGHTS = "weights"


def query_weights(port: Port, layers: str) -> list[torch.Tensor]:
    return [module.weight for module in port.parts("q_proj", layers=layers)]


@bug("gpt2-conv1d-transposed", site="c_proj", stage="weights", when=traits.gpt2, variants=LAYERS)
def conv1d_transposed(port: Port, layers: str) -> None:
    """Read (in, out) as (out, in) where both are alike."""
    for attention in port.attentions(layers):
        attention.c_proj.weight.copy_(attention.c_proj.weight.T.clone())


@bug("fused-qkv-layout", site="c_attn", stage="weights", when=traits.gpt2)
def fused_per_head(port: Port) -> None:
    """Read queries, keys and values of all heads as those of one head after the other."""
    heads = port.config.num_attention_heads
    for attention in port.attentions():
        for value in attention.c_attn.parameters():
            parts = value.unflatten(-1, (heads, 3, -1)).transpose(-3, -2)
            value.copy_(parts.flatten(-3).clone())


@bug("fused-gate-up-order", site="gate and up", stage="weights", when=traits.experts)
def halves_swapped(port: Port) -> None:
    for experts in port.experts():
        gate, up = experts.gate_up_proj.chunk(2, dim=1)
        experts.gate_up_proj.copy_(torch.cat((up, gate), dim=1))


@bug("gate-up-interleaved-split", site="gate and up", stage="weights", when=traits.experts)
def interleaved(port: Port) -> None:
    """Take every other row of a fused matrix for the gate."""
    for experts in port.experts():
        fused = experts.gate_up_proj
        fused.copy_(torch.cat((fused[:, 0::2], fused[:, 1::2]), dim=1))


def square(subject: Subject, name: str, **_: object) -> bool:
    config = subject.config
    wide = traits.rope(subject) and config.num_attention_heads * traits.head_dim(config)
    return wide == config.hidden_size and not traits.gemma(subject)


@bug(
    "weight-square-transposed",
    site="square weights",
    stage="weights",
    when=square,
    variants={
        f"{name}, {which}": {"name": name, **layers}
        for name in ("q_proj", "o_proj")
        for which, layers in LAYERS.items()
    },
)
def square_transposed(port: Port, name: str, layers: str) -> None:
    for module in port.parts(name, layers=layers):
        module.weight.copy_(module.weight.T.clone())


@bug(
    "gguf-dims-reversed",
    site="square weights",
    stage="weights",
    when=lambda subject, layers: traits.rope(subject) and not square(subject, "q_proj"),
    variants=LAYERS,
)
def dims_reversed(port: Port, layers: str) -> None:
    """Read the queries' rows with the width for their number."""
    for weight in query_weights(port, layers):
        weight.copy_(weight.reshape(*weight.shape[::-1]).T.clone())


@bug("tensor-data-offset", site="query bytes", stage="weights", when=traits.rope, variants=LAYERS)
def data_offset(port: Port, layers: str) -> None:
    """Read a tensor eight bytes early: four numbers of another stand before it."""
    for weight in query_weights(port, layers):
        weight.copy_(weight.flatten().roll(4).view_as(weight))


@bug(
    "layers-swapped",
    site="layer order",
    stage="weights",
    when=traits.loaded_as_stored,
)
def layers_swapped(port: Port) -> None:
    """Exchange the first two layers of one kind and one shape."""
    first, second = port.blocks[:2] if alike(*port.blocks[:2]) else pair(port)
    tensors = (block.state_dict().values() for block in (first, second))  # buffers are loaded too
    for one, other in zip(*tensors, strict=True):
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def alike(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    shapes = [[(n, t.shape) for n, t in one.state_dict().items()] for one in (first, second)]
    return shapes[0] == shapes[1]


def pair(port: Port) -> tuple[torch.nn.Module, torch.nn.Module]:
    return next(
        (one, other)
        for index, one in enumerate(port.blocks)
        for other in port.blocks[index + 1 :]
        if alike(one, other)
    )


@bug(
    "strict-false-drops-tensors",
    site="dropped tensors",
    stage="weights",
    when=traits.loaded_as_stored,
    variants={
        "the gain of a norm": {"what": "gain"},
        "a projection of nought": {"what": "nought"},
        "a projection": {"what": "noise"},
    },
)
def dropped(port: Port, what: str) -> None:
    """Leave a tensor of one layer as modules begin: ones, nought or small noise."""
    if what == "gain":
        port.layer_norms("one")[0].weight.fill_(1)
        return
    weight = port.parts("o_proj", "c_proj", layers="one")[0].weight
    if what == "nought":
        weight.zero_()
        return
    drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    weight.copy_(0.02 * drawn)
