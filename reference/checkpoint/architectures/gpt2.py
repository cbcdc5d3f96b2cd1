"""GPT-2: its config, its tensors, and undoing the layout in which it stores its matrices."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from lockstep.reference.checkpoint import config_common as common
from lockstep.reference.checkpoint.architectures import Shapes
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import TRAINING
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.sources import Source

CLASSES = ("GPT2LMHeadModel",)
MODEL = "gpt2"

SUMMARY = "only a classifier's head uses it"
UNUSED = "no engine reads it any more"
IGNORED: dict[str, str] = {
    "attn_pdrop": TRAINING,
    "embd_pdrop": TRAINING,
    "resid_pdrop": TRAINING,
    "gradient_checkpointing": TRAINING,
    "summary_type": SUMMARY,
    "summary_use_proj": SUMMARY,
    "summary_activation": SUMMARY,
    "summary_proj_to_labels": SUMMARY,
    "summary_first_dropout": SUMMARY,
    "_num_labels": SUMMARY,
    "task_specific_params": "holds settings of generating",
    "n_ctx": "n_positions says the same, and the table of positions proves it",
    "n_special": UNUSED,
    "predict_special_tokens": UNUSED,
    "output_past": UNUSED,
}
ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu")  # the first two are one function

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"
# transformers writes the first, the original files have none, mlx-lm writes the last.
PREFIXES = ("transformer.", "", "model.")
MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
MASK = re.compile(r"((transformer|model)\.)?h\.[0-9]+\.attn\.(masked_)?bias")
TIED_HEAD = re.compile(r"lm_head\.(weight|scales|biases)")


@dataclass(frozen=True)
class GPT2Config:
    """What a GPT-2 forward pass needs to know. Field names are the keys of config.json.

    `n_inner` is resolved: four times `n_embd` where config.json says null.
    """

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int
    layer_norm_epsilon: float
    activation_function: str
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool
    tie_word_embeddings: bool

    @property
    def hidden_size(self) -> int:
        return self.n_embd

    @property
    def intermediate_size(self) -> int:
        return self.n_inner

    @property
    def num_hidden_layers(self) -> int:
        return self.n_layer

    @property
    def num_attention_heads(self) -> int:
        return self.n_head

    @property
    def num_key_value_heads(self) -> int:
        return self.n_head

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def max_position_embeddings(self) -> int:
        return self.n_positions

    def attention_scale(self, layer: int) -> float:
        """Return what the scores of a layer are multiplied by, layers counted from 0."""
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


def parse(fields: Fields, ignore: Collection[str], warnings: list[str]) -> GPT2Config:
    """Return the config, or raise InputError for the first key that is wrong.

    Old files leave out what was added later; such a key counts as GPT-2 itself has it.
    """
    common.check_dtype(fields)
    width = common.width(fields, "n_embd")
    inner = fields.optional_integer("n_inner", low=1, high=common.WIDTH_LIMIT)
    config = GPT2Config(
        vocab_size=fields.integer("vocab_size", low=1, high=common.VOCAB_LIMIT),
        n_positions=fields.integer("n_positions", low=1, high=common.POSITION_LIMIT),
        n_embd=width,
        n_layer=fields.integer("n_layer", low=1, high=common.LAYER_LIMIT),
        n_head=fields.integer("n_head", low=1, high=common.HEAD_LIMIT),
        n_inner=4 * width if inner is None else inner,
        layer_norm_epsilon=common.eps(fields, "layer_norm_epsilon", warnings),
        activation_function=fields.choice("activation_function", ACTIVATIONS),
        scale_attn_weights=fields.boolean_or("scale_attn_weights", True),
        scale_attn_by_inverse_layer_idx=fields.boolean_or("scale_attn_by_inverse_layer_idx", False),
        tie_word_embeddings=fields.boolean_or("tie_word_embeddings", True),
    )
    if width % config.n_head:
        what = f"n_embd={width} is not a multiple of n_head={config.n_head}"
        raise InputError(fields.path, what)
    _check_variants(fields, config, warnings)
    return config


def _check_variants(fields: Fields, config: GPT2Config, warnings: list[str]) -> None:
    """Refuse what would be another architecture, and mention what half precision would show."""
    if fields.boolean_or("add_cross_attention", False):
        fields.refuse("add_cross_attention", "must be false: a decoder that stands alone is read")
    heads = fields.get("num_key_value_heads")  # a key of mlx-lm's
    if heads is not None and heads != config.n_head:
        fields.refuse("num_key_value_heads", f"must be n_head={config.n_head}")
    if fields.boolean_or("reorder_and_upcast_attn", False):
        warnings.append(
            "reorder_and_upcast_attn is true: transformers' eager attention then keeps scores in "
            "float32; here they are rounded to the dtype, which changes half precision alone"
        )


def tensors(config: GPT2Config) -> Shapes:
    """Return name -> shape, in the order of the forward pass. Matrices are (outputs, inputs)."""
    width, shapes = config.n_embd, {}
    shapes[EMBEDDING] = (config.vocab_size, width)
    shapes["transformer.wpe.weight"] = (config.n_positions, width)
    for layer in range(config.n_layer):
        for name, shape in _layer(config).items():
            shapes[f"transformer.h.{layer}.{name}.weight"] = shape
            shapes[f"transformer.h.{layer}.{name}.bias"] = shape[:1]
    shapes["transformer.ln_f.weight"] = (width,)
    shapes["transformer.ln_f.bias"] = (width,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, width)
    return shapes


def _layer(config: GPT2Config) -> Shapes:
    width, inner = config.n_embd, config.n_inner
    return {
        "ln_1": (width,),
        "attn.c_attn": (3 * width, width),
        "attn.c_proj": (width, width),
        "ln_2": (width,),
        "mlp.c_fc": (inner, width),
        "mlp.c_proj": (width, inner),
    }


def sources(config: GPT2Config, files: Shapes) -> dict[str, Source]:
    """Return where each tensor lies: under which prefix, and whether it is transposed.

    GPT-2 was written with one-dimensional convolutions of width 1. They compute x @ W + b, so its
    files hold a matrix as (inputs, outputs), the transpose of what every later model stores. mlx-lm
    turns the four matrices of a layer when it converts, and what it packs is turned before. The
    square `attn.c_proj` looks the same either way; `c_attn` has three times as many outputs as
    inputs, so its shape says for its whole file which way the matrices lie.
    """
    prefix = next((one for one in PREFIXES if f"{one}wte.weight" in files), PREFIXES[0])
    places = {
        name: Source((name.replace("transformer.", prefix, 1),))
        for name in tensors(config)
        if name != HEAD
    }
    telling = files.get(f"{prefix}h.0.attn.c_attn.weight")
    if telling == (config.n_embd, 3 * config.n_embd):
        for name, place in places.items():
            if name.removesuffix(".weight").endswith(MATRICES):
                places[name] = Source(place.names, transposed=True)
    return places


def tolerated(name: str, config: GPT2Config) -> str | None:
    """Return why a tensor that no layer needs may be there all the same, or None."""
    if MASK.fullmatch(name):
        return "they are the causal mask, not biases; it is computed"
    if config.tie_word_embeddings and TIED_HEAD.fullmatch(name):
        return "the head is tied to the embedding"
    return None


def position_limit(config: GPT2Config) -> int:
    """Return how many positions have a learned embedding: no token can stand beyond."""
    return config.n_positions
