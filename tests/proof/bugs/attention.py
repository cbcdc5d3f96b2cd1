"""Bugs of attention: the scale of the scores, the heads, the softmax, biases, shared keys."""

from collections.abc import Callable
from typing import Any

import torch

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import Subject, bug
from tests.proof.seams import (
    Heads,
    after_attention,
    attention_seam,
    before_attention,
    rotated,
)

SCALE, HEADS, SOFTMAX, VALUES = "attention scale", "head mapping", "softmax", "values"
LAYERS = {"every layer": {"layers": "all"}, "one layer": {"layers": "one"}}
KINDS = LAYERS | {"sliding layers": {"layers": "sliding"}, "full layers": {"layers": "full"}}


@bug("attn-scale-missing", site=SCALE, when=traits.scaled_scores, variants=LAYERS)
def scale_missing(port: Port, layers: str) -> None:
    for attention in port.attentions(layers):
        attention.scaling = 1.0


@bug("attn-scale-twice", site=SCALE, when=traits.scaled_scores)
def scale_twice(port: Port) -> None:
    for attention in port.attentions():
        attention.scaling **= 2


@bug("attn-scale-should-be-one", site=SCALE, when=traits.gemma, variants=KINDS)
def scale_by_root(port: Port, layers: str) -> None:
    for attention in port.attentions(layers):
        attention.scaling = attention.head_dim**-0.5


@bug(
    "attn-scale-should-be-one",
    site=SCALE,
    when=traits.gemma,
    variants={"one scalar for all layers": {}},
)
def scale_by_one_scalar(port: Port) -> None:
    """Scale all layers by the width of the sliding ones, as Gemma 2 and 3 have one scalar."""
    scalar = port.attentions("sliding")[0].head_dim
    for attention in port.attentions():
        attention.scaling = scalar**-0.5


@bug(
    "attn-head-dim-derived",
    site=SCALE,
    when=lambda subject: traits.own_head_dim(subject) and traits.scaled_scores(subject),
)
def scale_of_derived_width(port: Port) -> None:
    for attention in port.attentions():
        attention.scaling = (port.config.hidden_size // port.config.num_attention_heads) ** -0.5


@bug("gqa-tile-vs-repeat", site=HEADS, when=traits.grouped, variants=LAYERS)
def tiled(port: Port, layers: str) -> None:
    """Give query head h the key head h mod n."""

    def tile(heads: Heads) -> Heads:
        key, value = (x.repeat(1, heads.groups, 1, 1) for x in (heads.key, heads.value))
        return heads.but(key=key, value=value, groups=1)

    for attention in port.attentions(layers):
        before_attention(attention, tile)


@bug("head-merge-without-transpose", site="head merge", when=traits.anywhere, variants=LAYERS)
def merged_as_they_lie(port: Port, layers: str) -> None:
    """Read (B, H, L, D) as if it were (B, L, H, D)."""
    for attention in port.attentions(layers):
        after_attention(attention, lambda out: out.transpose(1, 2).reshape(out.shape))


def own_projections(subject: Subject, **_: Any) -> bool:
    return not traits.gpt2(subject)


@bug("head-split-without-transpose", site="head split", when=own_projections, variants=LAYERS)
def split_as_they_lie(port: Port, layers: str) -> None:
    """Read (B, L, H D) as if it were (B, H, L, D)."""

    def viewed(project: Any, width: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            out = project(x)  # the module, so that its hooks see what is right
            batch, length, size = out.shape
            return out.view(batch, size // width, length, width).transpose(1, 2).reshape(out.shape)

        return forward

    for attention in port.attentions(layers):
        for name in ("q_proj", "k_proj", "v_proj"):
            if (project := getattr(attention, name, None)) is not None:
                attention_seam(attention).parts[name] = viewed(project, attention.head_dim)


def own_values(subject: Subject, **_: Any) -> bool:
    return not traits.keys_as_values(subject)


@bug("v-taken-from-k", site=VALUES, when=own_values, variants=LAYERS)
def values_from_keys(port: Port, layers: str) -> None:
    for attention in port.attentions(layers):
        before_attention(attention, lambda heads: heads.but(value=heads.key))


@bug(
    "v-from-normed-keys",
    site=VALUES,
    when=traits.keys_as_values,
    variants={"before rope": {"turned": False}, "after rope": {"turned": True}},
)
def values_from_normed_keys(port: Port, turned: bool) -> None:
    """Where keys are values too, take them after the keys' norm, not before."""
    for attention in port.attentions("full"):
        if turned:
            before_attention(attention, lambda heads: heads.but(value=heads.key))
        else:
            # The function, not the module: its hooks see the keys alone.
            attention_seam(attention).parts["v_norm"] = attention.k_norm.forward


@bug("kv-sharing-ignored", site="shared keys", stage="parts", when=traits.shared_keys)
def keys_of_their_own(port: Port) -> None:
    """Let the last layers compute keys and values with the weights that nobody should use."""
    for index, block in enumerate(port.blocks):
        if not block.self_attn.is_kv_shared_layer:
            continue
        own = OwnKeys(port, index)
        block.self_attn.register_forward_pre_hook(own.listen, with_kwargs=True)
        before_attention(block.self_attn, own.attend)


class OwnKeys:
    """The unused projections of one layer, and what they make of its last input."""

    def __init__(self, port: Port, index: int):
        stem, dtype = f"model.layers.{index}.self_attn.", port.embedding.weight.dtype
        read = {name: port.stored(f"{stem}{name}.weight").to(dtype) for name in
                ("k_proj", "v_proj", "k_norm")}  # fmt: skip
        self.key, self.value, self.gain = read["k_proj"], read["v_proj"], read["k_norm"]
        self.eps, self.input = port.config.rms_norm_eps, torch.empty(0)

    def listen(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.input = kwargs["hidden_states"]

    def attend(self, heads: Heads) -> Heads:
        key, value = (
            self.unit((self.input @ weight.T).unflatten(-1, (-1, len(self.gain))))
            for weight in (self.key, self.value)
        )
        key = (key * self.gain.float()).to(heads.key.dtype).transpose(1, 2)
        value = value.to(heads.value.dtype).transpose(1, 2)
        return heads.but(key=rotated("k", key, *heads.cos_sin), value=value)

    def unit(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


@bug("softmax-low-precision", site=SOFTMAX, when=traits.anywhere)
def softmax_half(port: Port) -> None:
    """Take exponentials and their sum in bfloat16."""

    def weigh(scores: torch.Tensor) -> torch.Tensor:
        scores = scores.to(torch.bfloat16)
        shares = (scores - scores.amax(-1, keepdim=True)).exp()
        return shares / shares.sum(-1, keepdim=True)

    for attention in port.attentions():
        before_attention(attention, lambda heads: heads.but(weigh=weigh))


@bug(
    "softmax-wrong-axis",
    site=SOFTMAX,
    when=traits.anywhere,
    variants={"over queries": {"axis": -2}, "over heads": {"axis": 1}},
)
def softmax_axis(port: Port, axis: int) -> None:
    def weigh(scores: torch.Tensor) -> torch.Tensor:
        hidden = scores < torch.finfo(scores.dtype).min / 2
        return scores.float().softmax(axis).masked_fill(hidden, 0)

    for attention in port.attentions():
        before_attention(attention, lambda heads: heads.but(weigh=weigh))


BIASES = {
    "queries, keys and values": {"names": ("q_proj", "k_proj", "v_proj")},
    "queries": {"names": ("q_proj",)},
    "keys": {"names": ("k_proj",)},
    "values": {"names": ("v_proj",)},
}


@bug(
    "qkv-bias-dropped",
    site="attention bias",
    when=lambda subject, names: traits.biased(subject) and not traits.gpt2(subject),
    variants=BIASES,
)
def bias_dropped(port: Port, names: tuple[str, ...]) -> None:
    for projection in port.parts(*names):
        projection.bias.zero_()


@bug(
    "qkv-bias-dropped",
    site="attention bias",
    when=traits.gpt2,
    variants={"fused": {"part": None}, "fused, queries": {"part": 0}, "fused, values": {"part": 2}},
)
def fused_bias_dropped(port: Port, part: int | None) -> None:
    for projection in port.parts("c_attn"):
        parts = projection.bias.chunk(3)
        (projection.bias if part is None else parts[part]).zero_()


@bug(
    "o-proj-mlp-bias-dropped",
    site="other biases",
    when=traits.all_biased,
    variants={name: {"names": (name,)} for name in ("o_proj", "gate_proj", "up_proj", "down_proj")},
)
def other_bias_dropped(port: Port, names: tuple[str, ...]) -> None:
    for projection in port.parts(*names):
        projection.bias.zero_()


@bug(
    "o-proj-mlp-bias-dropped",
    site="other biases",
    when=traits.gpt2,
    variants={name: {"path": name} for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")},
)
def gpt2_bias_dropped(port: Port, path: str) -> None:
    for block in port.blocks:
        block.get_submodule(path).bias.zero_()
