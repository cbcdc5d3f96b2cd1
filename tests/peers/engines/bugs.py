"""The bugs that every engine runs alike: each is in what a checkpoint says, not in an engine.

A converter, a config or a merge went wrong; then transformers, mlx-lm and llama.cpp compute the
same wrong thing from it. No patch imports the catalogue; the ids that may be named are beside each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.peers.engines.checkpoints import ALPHA, RANK, Checkpoint, merged

Change = Callable[[Checkpoint], Checkpoint | None]  # in place, or another one


@dataclass(frozen=True)
class Bug:
    """A bug in a checkpoint: which one, what is done to it, and the ids that are its name."""

    of: str
    change: Change
    ids: frozenset[str]


def key(name: str, value: Any) -> Change:
    return lambda wrong: wrong.keys.update({name: value})


def rope(kind: str | None = None, **changes: Any) -> Change:
    """Change keys of `rope_parameters`, or of one kind of layers in it."""

    def change(wrong: Checkpoint) -> None:
        keys = wrong.keys["rope_parameters"]
        (keys if kind is None else keys[kind]).update(changes)

    return change


def unscaled(wrong: Checkpoint) -> None:
    theta = wrong.keys["rope_parameters"]["rope_theta"]
    wrong.keys["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}


def each(*endings: str, to: Callable[[np.ndarray], np.ndarray], first: int = 0) -> Change:
    """Change every tensor whose name ends so, from a layer on."""

    def change(wrong: Checkpoint) -> None:
        for ending in endings:
            names = wrong.named(ending)
            for name in names[first:] if len(names) > 1 else names:
                wrong.tensors[name] = np.ascontiguousarray(to(wrong.tensors[name]), np.float32)

    return change


def exchanged(one: str, other: str) -> Change:
    """Let two tensors of each layer take each other's place."""

    def change(wrong: Checkpoint) -> None:
        for name in wrong.named(one):
            twin = name.removesuffix(one) + other
            wrong.tensors[name], wrong.tensors[twin] = wrong.tensors[twin], wrong.tensors[name]

    return change


def values_from_keys(wrong: Checkpoint) -> None:
    for name in [*wrong.named("v_proj.weight"), *wrong.named("v_proj.bias")]:
        wrong.tensors[name] = wrong.tensors[name.replace("v_proj", "k_proj")].copy()


def one_layer_on(wrong: Checkpoint) -> None:
    """Give each layer the tensors of the next, the last those of the first."""
    count, before = wrong.keys["num_hidden_layers"], dict(wrong.tensors)
    for name in before:
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            wrong.tensors[name] = before[f"model.layers.{(int(layer) + 1) % count}.{rest}"]


def in_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order rows as Meta's files and GGUF have them: the two halves of a head become neighbours."""
    cut = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return cut.swapaxes(1, 2).reshape(rows.shape)


def in_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo that, with a number of heads that need not be the right one."""
    cut = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return cut.swapaxes(1, 2).reshape(rows.shape)


def other_order(rows: np.ndarray) -> np.ndarray:
    return np.roll(rows, -1, axis=0)


def in_other_sizes(matrix: np.ndarray) -> np.ndarray:
    """Read the sizes in the order of a GGUF header: the numbers of the transpose's layout."""
    return matrix.reshape(matrix.shape[::-1]).T


def bits_of_float16(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).view(np.float16).astype(np.float32)


ZERO, ONE, MORE = np.zeros_like, np.ones_like, (lambda gain: gain + 1)
HEADS, GROUPS = 4, 2
QUERIES, KEYS = ("q_proj.weight", "q_proj.bias"), ("k_proj.weight", "k_proj.bias")
BIASES = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
GAINS = ("norm.weight",)  # of every norm there is


def rows_left_in_pairs(wrong: Checkpoint) -> None:
    each(*QUERIES, to=lambda rows: in_pairs(rows, HEADS))(wrong)
    each(*KEYS, to=lambda rows: in_pairs(rows, GROUPS))(wrong)


def by_other_heads(rows: np.ndarray) -> np.ndarray:
    """Put keys back from pairs as if they had as many heads as queries."""
    return in_halves(in_pairs(rows, GROUPS), HEADS)


def bug(of: str, change: Change, *ids: str) -> Bug:
    return Bug(of, change, frozenset(ids))


SINGLES: dict[str, Bug] = {
    "eps 1e-5 for 1e-6": bug("llama", key("rms_norm_eps", 1e-5), "rms-eps-wrong"),
    "theta 10000 for a million": bug("qwen3", rope(rope_theta=1e4), "rope-theta-default"),
    "llama3 scaling dropped": bug("llama", unscaled, "rope-llama3-scaling-missing"),
    "llama3 scaling by the longer length": bug(
        "llama", rope(original_max_position_embeddings=64), "rope-llama3-scaling-missing"
    ),
    "rows of q and k left in pairs": bug(
        "llama", rows_left_in_pairs, *("rope-unpermute-gqa", "rope-pairing-swapped")
    ),
    "rows of k put back by the heads of q": bug(
        "llama", each(*KEYS, to=by_other_heads), "rope-unpermute-gqa"
    ),
    "gate and up exchanged": bug(
        "llama",
        exchanged("gate_proj.weight", "up_proj.weight"),
        *("swiglu-gate-up-swapped", "fused-gate-up-order"),
    ),
    "up_proj transposed": bug(
        "llama", each("up_proj.weight", to=np.transpose), "weight-square-transposed"
    ),
    "o_proj with its sizes reversed": bug(
        "llama", each("o_proj.weight", to=in_other_sizes), "gguf-dims-reversed"
    ),
    "biases of q, k, v dropped": bug("llama", each(*BIASES, to=ZERO), "qkv-bias-dropped"),
    "bias of o_proj dropped": bug("llama", each("o_proj.bias", to=ZERO), "o-proj-mlp-bias-dropped"),
    "v_proj holds k_proj": bug("llama", values_from_keys, "v-taken-from-k"),
    "norms of a layer exchanged": bug(
        "llama",
        exchanged("input_layernorm.weight", "post_attention_layernorm.weight"),
        "norm-name-aliasing",
    ),
    "down_proj's bits read as float16": bug(
        "llama", each("down_proj.weight", to=bits_of_float16), "bf16-read-as-fp16"
    ),
    "layers one on": bug("llama", one_layer_on, "layers-swapped"),
    "embedding one row on": bug(
        "llama", each("embed_tokens.weight", to=other_order), "embedding-id-shifted"
    ),
    "the head is the embedding": bug(
        "llama", key("tie_word_embeddings", True), "tied-head-mishandled"
    ),
    "final norm without its gain": bug(
        "llama", each("model.norm.weight", to=ONE), "strict-false-drops-tensors"
    ),
    "one more on every gain": bug("qwen3", each(*GAINS, to=MORE), "norm-plus-one-twice"),
    "q_norm and k_norm without their gain": bug(
        "qwen3", each("q_norm.weight", "k_norm.weight", to=ONE), "strict-false-drops-tensors"
    ),
    "q_norm and k_norm exchanged": bug(
        "qwen3", exchanged("q_norm.weight", "k_norm.weight"), "qk-norm-gains-mixed"
    ),
    "down_proj of the last layer zero": bug(
        "qwen3", each("down_proj.weight", to=ZERO, first=2), "strict-false-drops-tensors"
    ),
    "LoRA: alpha not divided by the rank": bug(
        "qwen3+lora", lambda wrong: merged(wrong, ALPHA), "lora-alpha-not-divided"
    ),
    "LoRA: scale divided by the rank again": bug(
        "qwen3+lora", lambda wrong: merged(wrong, ALPHA / RANK**2), "lora-scale-divided-again"
    ),
    "LoRA: never merged": bug("qwen3+lora", lambda wrong: merged(wrong, 0.0), "lora-not-applied"),
    "window of 10 for 9": bug("gemma4", key("sliding_window", 10), "mask-swa-off-by-one"),
    "window of 8 for 9": bug("gemma4", key("sliding_window", 8), "mask-swa-off-by-one"),
    "no window": bug("gemma4", key("sliding_window", 1000), "mask-layer-types-ignored"),
    "full layers turn by the base of sliding ones": bug(
        "gemma4", rope("full_attention", rope_theta=100.0), "rope-local-global-theta"
    ),
    "one more on every gain of Gemma": bug("gemma4", each(*GAINS, to=MORE), "norm-plus-one-twice"),
    "layer_scalar lost": bug(
        "gemma4",
        each("layer_scalar", to=ONE),
        *("layer-scalar-missing", "strict-false-drops-tensors"),
    ),
    "norms around the MLP exchanged": bug(
        "gemma4",
        exchanged("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"),
        "ffn-norms-swapped",
    ),
    "the whole head turns": bug(
        "gemma4", rope("full_attention", partial_rotary_factor=1.0), "rope-proportional-missing"
    ),
}
COMBINATIONS: tuple[tuple[str, ...], ...] = (
    ("eps 1e-5 for 1e-6", "llama3 scaling dropped", "final norm without its gain"),
    ("rows of q and k left in pairs", "gate and up exchanged", "bias of o_proj dropped"),
    ("biases of q, k, v dropped", "embedding one row on", "the head is the embedding"),
    ("up_proj transposed", "norms of a layer exchanged", "v_proj holds k_proj"),
    ("the head is the embedding", "o_proj with its sizes reversed", "layers one on"),
    ("q_norm and k_norm exchanged", "theta 10000 for a million"),
    ("theta 10000 for a million", "one more on every gain", "down_proj of the last layer zero"),
    ("LoRA: alpha not divided by the rank", "one more on every gain"),
    ("window of 10 for 9", "one more on every gain of Gemma", "layer_scalar lost"),
    ("full layers turn by the base of sliding ones", "norms around the MLP exchanged"),
)
