"""Bugs of rotary positions: the pairs, the frequencies, the positions, the tables."""

import math
from typing import Any

import torch

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import Subject, bug
from tests.proof.seams import around_turn, before_attention, rotated, wrap

PAIRS, TABLES, POSITIONS, BASE = "rope pairs", "rope tables", "rope positions", "rope frequencies"
KINDS = {
    "every layer": {"layers": "all"},
    "one layer": {"layers": "one"},
    "sliding layers": {"layers": "sliding"},
    "full layers": {"layers": "full"},
}


@bug("rope-pairing-swapped", site=PAIRS, when=traits.rope, variants=KINDS)
def pairing(port: Port, layers: str) -> None:
    """Turn dimensions 2i and 2i+1 by angle i, where i and i + D/2 belong together."""

    def turn(previous: Any, role: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        halves = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
        first, second = previous(role, halves, cos, sin).chunk(2, dim=-1)
        return torch.stack((first, second), dim=-1).flatten(-2)

    for attention in port.attentions(layers):
        around_turn(attention, turn)


@bug("rope-sign-flipped", site=PAIRS, when=traits.rope, variants=KINDS)
def sign(port: Port, layers: str) -> None:
    for attention in port.attentions(layers):
        around_turn(attention, lambda turn, role, x, cos, sin: turn(role, x, cos, -sin))


@bug("rope-sign-flipped", site=PAIRS, when=traits.rope, variants={"in one half alone": {}})
def never_negated(port: Port) -> None:
    """Rotate half without the minus."""

    def turn(previous: Any, role: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        half = cos.shape[-1] // 2
        back, forth = previous(role, x, cos, -sin), previous(role, x, cos, sin)
        return torch.cat((back[..., :half], forth[..., half:]), dim=-1)

    for attention in port.attentions():
        around_turn(attention, turn)


@bug("rope-missing-on-layer-kind", site=PAIRS, when=traits.rope, variants=KINDS)
def missing(port: Port, layers: str) -> None:
    for attention in port.attentions(layers):
        around_turn(attention, lambda turn, role, x, cos, sin: x)


@bug(
    "rope-applied-twice",
    site=PAIRS,
    when=traits.rope,
    variants={"both": {"roles": "qk"}, "queries": {"roles": "q"}, "keys": {"roles": "k"}},
)
def twice(port: Port, roles: str) -> None:
    """Rotate in the projection's code, and in the attention's once more."""

    def turn(previous: Any, role: str, x: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
        once = previous(role, x, *tables)
        return previous(role, once, *tables) if role in roles else once

    for attention in port.attentions():
        around_turn(attention, turn)


@bug("rope-axis-mixup", site=POSITIONS, when=traits.rope)
def axis(port: Port) -> None:
    """Read the position off the axis of heads: (B, H, L, D) rotated as if it were (B, L, H, D)."""

    def turn(previous: Any, role: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        heads = x.shape[1]
        tables = cos[:, :heads], sin[:, :heads]
        return previous(role, x.transpose(1, 2), *tables).transpose(1, 2)

    for attention in port.attentions():
        around_turn(attention, turn)


@bug("rope-applied-to-v", site="values", when=traits.rope)
def on_values(port: Port) -> None:
    for attention in port.attentions():
        before_attention(attention, lambda h: h.but(value=rotated("v", h.value, *h.cos_sin)))


@bug(
    "rope-pos-starts-at-1",
    site=POSITIONS,
    when=traits.fixed_frequencies,
    benign="scores depend on the distance of two positions alone, and no module hands out q or k",
)
def from_one(port: Port) -> None:
    def ahead(tables: Any, x: torch.Tensor, position_ids: torch.Tensor, *kind: str) -> Any:
        return tables(x, position_ids + 1, *kind)

    wrap(port.base.rotary_emb, ahead)


@bug(
    "rope-query-position-shifted",
    site=POSITIONS,
    when=traits.fixed_frequencies,
    variants={"queries": {"shifted": "q"}, "keys": {"shifted": "k"}},
)
def one_role_shifted(port: Port, shifted: str) -> None:
    """Rotate one of the two by the tables of the next position."""
    rotary, kinds = port.base.rotary_emb, {kind for kind, _ in port.frequencies()}

    def turn(previous, role, x, cos, sin, kind):
        if role != shifted:
            return previous(role, x, cos, sin)
        return previous(role, x, *rotary(x, torch.arange(1, x.shape[2] + 1)[None], *kind))

    for attention in port.attentions():
        kind = {getattr(attention, "layer_type", None)} & kinds
        around_turn(attention, lambda previous, *args, kind=kind: turn(previous, *args, kind=kind))


def other_theta(subject: Subject) -> bool:
    parameters = getattr(subject.config, "rope_parameters", None) or {}
    return traits.fixed_frequencies(subject) and parameters.get("rope_theta", 1e4) != 1e4


@bug("rope-theta-default", site=BASE, stage="config", when=other_theta)
def theta_default(config: Any) -> None:
    config.rope_parameters["rope_theta"] = 1e4


@bug(
    "rope-local-global-theta",
    site=BASE,
    stage="config",
    when=traits.gemma,
    variants={
        "local everywhere": {"source": traits.SLIDING, "target": traits.FULL},
        "global everywhere": {"source": traits.FULL, "target": traits.SLIDING},
    },
)
def one_theta(config: Any, source: str, target: str) -> None:
    parameters = config.rope_parameters
    parameters[target]["rope_theta"] = parameters[source]["rope_theta"]


@bug("rope-linear-scale-inverted", site=BASE, stage="config", when=traits.scaling("linear"))
def linear_inverted(config: Any) -> None:
    config.rope_parameters["factor"] = 1 / config.rope_parameters["factor"]


@bug("rope-llama3-scaling-missing", site=BASE, stage="config", when=traits.scaling("llama3"))
def llama3_missing(config: Any) -> None:
    config.rope_parameters["rope_type"] = "default"


def yarn_default(parameters: dict[str, Any]) -> float:
    return 0.1 * math.log(parameters["factor"]) + 1


@bug(
    "rope-yarn-attn-factor",
    site="rope amplitude",
    stage="config",
    when=lambda subject, given: (
        traits.scaling("yarn")(subject)
        and (given or "attention_factor" in subject.config.rope_parameters)
    ),
    variants={"never": {"given": 1.0}, "always 0.1 ln s + 1": {"given": None}},
)
def yarn_amplitude(config: Any, given: float | None) -> None:
    parameters = config.rope_parameters
    parameters["attention_factor"] = given or yarn_default(parameters)


@bug(
    "rope-longrope-always-long",
    site=BASE,
    stage="config",
    when=traits.scaling("longrope"),
    prompt="short",
)
def always_long(config: Any) -> None:
    config.rope_parameters["short_factor"] = config.rope_parameters["long_factor"]


@bug(
    "rope-longrope-mscale",
    site="rope amplitude",
    stage="config",
    when=traits.scaling("longrope"),
)
def longrope_amplitude(config: Any) -> None:
    config.rope_parameters["attention_factor"] = 1.0


@bug(
    "rope-dynamic-ntk",
    site=BASE,
    stage="config",
    when=traits.scaling("dynamic"),
    variants={"fixed base": {"factor": None}, "of the longest text": {"factor": 2.0}},
)
def dynamic_base(config: Any, factor: float | None) -> None:
    """Keep the base, or take it for twice the length that the model was made for."""
    if factor is None:
        config.rope_parameters["rope_type"] = "default"
        return
    parameters, dims = config.rope_parameters, traits.head_dim(config)
    growth = parameters["factor"] * factor - (parameters["factor"] - 1)
    parameters["rope_theta"] *= growth ** (dims / (dims - 2))
    parameters["rope_type"] = "default"


def full_rope(port: Port) -> tuple[float, int, int]:
    """Return the base, the head width and the turned dimensions of Gemma's full layers."""
    parameters = port.config.rope_parameters[traits.FULL]
    dims = port.attentions("full")[0].head_dim
    return parameters["rope_theta"], dims, 2 * int(parameters["partial_rotary_factor"] * dims // 2)


def powers(theta: float, count: int, dims: int) -> torch.Tensor:
    return theta ** (-torch.arange(0, count, 2, dtype=torch.float32) / dims)


@bug("rope-proportional-missing", site=BASE, when=traits.gemma, variants={"plain, all turn": {}})
def all_turned(port: Port) -> None:
    """Rotate full layers as if every one of their pairs turned."""
    theta, dims, _turned = full_rope(port)
    port.set_frequencies(traits.FULL, powers(theta, dims, dims))


@bug("rope-partial-denominator", site=BASE, when=traits.gemma)
def denominator(port: Port) -> None:
    """Divide the exponent by the dimensions that turn, not by those of the head."""
    theta, dims, turned = full_rope(port)
    still = torch.zeros(dims // 2 - turned // 2)
    port.set_frequencies(traits.FULL, torch.cat((powers(theta, turned, turned), still)))


@bug("rope-proportional-missing", site=BASE, when=traits.gemma, variants={"a narrower head": {}})
def proportional_missing(port: Port) -> None:
    """Rotate the first quarter of a full layer's head as a narrower head of its own."""
    theta, _dims, turned = full_rope(port)

    def turn(previous: Any, role: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        angles = torch.arange(x.shape[2])[:, None] * powers(theta, turned, turned).repeat(2)
        tables = (angles.cos()[None].to(x.dtype), angles.sin()[None].to(x.dtype))
        return torch.cat((previous(role, x[..., :turned], *tables), x[..., turned:]), dim=-1)

    for attention in port.attentions("full"):
        around_turn(attention, turn)


@bug("rope-inv-freq-half", site=BASE, when=traits.fixed_frequencies)
def frequencies_half(port: Port) -> None:
    for kind, value in list(port.frequencies()):
        port.set_frequencies(kind, value.to(torch.bfloat16).float())


@bug(
    "rope-inv-freq-formula",
    site=BASE,
    when=traits.fixed_frequencies,
    benign="another right formula in float32: the last bits of an angle differ",
)
def frequencies_by_logarithm(port: Port) -> None:
    for kind, value in list(port.frequencies()):
        turning = torch.where(value > 0, value, torch.ones_like(value))
        port.set_frequencies(kind, torch.where(value > 0, torch.exp(turning.log()), value))


@bug("rope-cos-sin-half", site=TABLES, when=traits.rope, dtypes=("float32", "float16"))
def tables_half(port: Port) -> None:
    """Keep the tables in bfloat16, which a port in bfloat16 does anyway."""

    def halved(tables: Any, x: torch.Tensor, *args: Any, **more: Any) -> tuple[torch.Tensor, ...]:
        return tuple(table.to(torch.bfloat16).to(x.dtype) for table in tables(x, *args, **more))

    wrap(port.base.rotary_emb, halved)


def unpermutes(subject: Subject) -> bool:
    """Say whether the keys' rows can be read as those of as many heads as there are queries."""
    if not traits.grouped(subject) or not traits.loaded_as_stored(subject):
        return False
    config = subject.config
    rows = config.num_key_value_heads * traits.head_dim(config)
    return traits.llama_mlp(subject) and rows % (2 * config.num_attention_heads) == 0


@bug("rope-unpermute-gqa", site="key rows", stage="weights", when=unpermutes)
def unpermuted(port: Port) -> None:
    """Undo GGUF's order of the keys' rows with the number of query heads."""
    right, wrong = port.config.num_key_value_heads, port.config.num_attention_heads
    for attention in port.attentions():
        for value in attention.k_proj.parameters():
            rows = value.unflatten(0, (right, 2, -1)).transpose(1, 2).flatten(0, 2)
            value.copy_(rows.unflatten(0, (wrong, -1, 2)).transpose(1, 2).flatten(0, 2))
