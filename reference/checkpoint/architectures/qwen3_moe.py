"""Qwen3-MoE: its config, its tensors, and the three ways in which files hold experts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint import qwen3_family as family
from lockstep.reference.checkpoint.architectures import Shapes
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import REPORTING, TRAINING
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.llama_family import TIED_HEAD
from lockstep.reference.checkpoint.rope_config import read_rope
from lockstep.reference.checkpoint.rope_scaling import RopeScaling
from lockstep.reference.checkpoint.sources import Source

CLASSES = ("Qwen3MoeForCausalLM",)
MODEL = "qwen3_moe"
IGNORED: dict[str, str] = {
    "router_aux_loss_coef": TRAINING,
    "output_router_logits": REPORTING,
    "max_window_layers": "all layers slide or none, as in transformers",
}

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
EXPERT_LIMIT = 1 << 14


@dataclass(frozen=True)
class Qwen3MoeConfig:
    """What a Qwen3-MoE forward pass needs to know. Field names are the keys of config.json.

    `intermediate_size` is the width of the dense layers' MLP, `moe_intermediate_size` that of one
    expert. `sliding_window` is None unless every layer slides.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: tuple[int, ...]
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tie_word_embeddings: bool
    attention_bias: bool
    max_position_embeddings: int
    sliding_window: int | None

    def is_sparse(self, layer: int) -> bool:
        """Tell whether a layer, counted from 0, has experts."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> Qwen3MoeConfig:
    """Return the config, or raise InputError for the first key that is wrong."""
    head_dim = fields.integer("head_dim", low=2, high=common.HEAD_LIMIT)
    theta, scaling = read_rope(fields, ignore, warnings, dims=head_dim)
    layers = fields.integer("num_hidden_layers", low=1, high=common.LAYER_LIMIT)
    fields.choice("hidden_act", ("silu",))
    common.check_dtype(fields)
    config = Qwen3MoeConfig(
        vocab_size=fields.integer("vocab_size", low=1, high=common.VOCAB_LIMIT),
        hidden_size=common.width(fields, "hidden_size"),
        intermediate_size=common.width(fields, "intermediate_size"),
        moe_intermediate_size=common.width(fields, "moe_intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=fields.integer("num_attention_heads", low=1, high=common.HEAD_LIMIT),
        num_key_value_heads=fields.integer("num_key_value_heads", low=1, high=common.HEAD_LIMIT),
        head_dim=head_dim,
        num_experts=_experts(fields),
        num_experts_per_tok=fields.integer("num_experts_per_tok", low=1, high=EXPERT_LIMIT),
        # transformers takes false where it is absent, but published models say true.
        norm_topk_prob=fields.boolean("norm_topk_prob"),
        decoder_sparse_step=fields.integer("decoder_sparse_step", low=1, high=common.LAYER_LIMIT),
        mlp_only_layers=_dense_layers(fields, layers),
        rms_norm_eps=common.eps(fields, "rms_norm_eps", warnings),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=fields.boolean_or("tie_word_embeddings", False),
        attention_bias=fields.boolean_or("attention_bias", False),
        max_position_embeddings=fields.integer(
            "max_position_embeddings", low=1, high=common.POSITION_LIMIT
        ),
        sliding_window=_window(fields),
    )
    common.check_heads(fields, config.num_attention_heads, config.num_key_value_heads)
    if config.num_experts_per_tok > config.num_experts:
        what = f"num_experts_per_tok={config.num_experts_per_tok}, but num_experts="
        raise InputError(fields.path, f"{what}{config.num_experts}")
    return config


def _experts(fields: Fields) -> int:
    """Return the number of experts. transformers 5 spells the key `num_local_experts`."""
    names = [key for key in ("num_experts", "num_local_experts") if fields.get(key) is not None]
    counts = {key: fields.integer(key, low=1, high=EXPERT_LIMIT) for key in names}
    if len(set(counts.values())) > 1:
        fields.refuse("num_local_experts", f"must be num_experts={counts['num_experts']}")
    return fields.integer(names[0] if names else "num_experts", low=1, high=EXPERT_LIMIT)


def _dense_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    listed = fields.get("mlp_only_layers")
    if listed is None:
        return ()
    good = isinstance(listed, list) and all(
        type(one) is int and 0 <= one < layers for one in listed
    )
    if not good:
        fields.refuse("mlp_only_layers", f"must list layers from 0 to {layers - 1}")
    return tuple(sorted(set(listed)))


def _window(fields: Fields) -> int | None:
    """Return the window of all layers; without `use_sliding_window` there is none."""
    said = fields.optional_integer("sliding_window", low=1, high=common.POSITION_LIMIT)
    return said if fields.boolean_or("use_sliding_window", False) else None


def tensors(config: Qwen3MoeConfig) -> Shapes:
    """Return name -> shape, in the order of the forward pass. Matrices are (outputs, inputs).

    The experts of a layer are one stack for each projection, (experts, outputs, inputs).
    """
    dense, sparse = family.mlp(config), _sparse(config)
    return family.tensors(
        config,
        lambda layer: family.attention(config) | (sparse if config.is_sparse(layer) else dense),
    )


def _sparse(config: Qwen3MoeConfig) -> Shapes:
    count, width, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
    return {
        "mlp.gate.weight": (count, width),
        "mlp.experts.gate_proj.weight": (count, inner, width),
        "mlp.experts.up_proj.weight": (count, inner, width),
        "mlp.experts.down_proj.weight": (count, width, inner),
    }


def sources(config: Qwen3MoeConfig, files: Shapes) -> dict[str, Source]:
    """Return where the experts of each layer lie.

    Files of the hub hold three matrices an expert; transformers 5 may write what it has in memory,
    a stack with the rows of `gate_proj` above those of `up_proj`; mlx-lm stacks each projection.
    """
    found = {}
    for layer in filter(config.is_sparse, range(config.num_hidden_layers)):
        path = f"model.layers.{layer}.mlp"
        for half, name in enumerate(PROJECTIONS):
            place = Source(
                tuple(f"{path}.experts.{e}.{name}.weight" for e in range(config.num_experts)),
                stacked=True,
            )
            if f"{path}.experts.gate_up_proj" in files:
                fused = Source((f"{path}.experts.gate_up_proj",), half=half)
                place = fused if half < 2 else Source((f"{path}.experts.down_proj",))
            elif f"{path}.switch_mlp.{name}.weight" in files:
                place = Source((f"{path}.switch_mlp.{name}.weight",))
            found[f"{path}.experts.{name}.weight"] = place
    return found


def tolerated(name: str, config: Qwen3MoeConfig) -> str | None:
    """Return why a tensor that no layer needs may be there all the same, or None."""
    if config.tie_word_embeddings and TIED_HEAD.fullmatch(name):
        return "the head is tied to the embedding"
    return None
