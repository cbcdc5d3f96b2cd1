"""What the keys of config.json do, and what engines take where one is absent."""

from dataclasses import dataclass
from typing import Any

NEEDED = object()  # no engine has a default that would fit


@dataclass(frozen=True)
class Key:
    """One key: what is taken where it is absent, what it does, and the fault of having it wrong.

    `by_model` has the defaults of single architectures. `fault` is an id of the catalogue, None
    where no class fits.
    """

    default: Any
    effect: str
    fault: str | None = None
    by_model: tuple[tuple[str, Any], ...] = ()

    def default_for(self, model: str) -> Any:
        return next(
            (value for name, value in self.by_model if model.startswith(name)), self.default
        )


ROPE = "which frequencies the rotary embedding has"
HEADS = "how rows of q, k and v are cut into heads, and the scale of the scores"
KINDS = "which layers see a window"

KEYS: dict[str, Key] = {
    "rope_theta": Key(10000.0, "the base of the rotary embedding", "rope-theta-default"),
    "rope_theta[full_attention]": Key(
        10000.0, "the base of the rotary embedding in full layers", "rope-local-global-theta"
    ),
    "rope_theta[sliding_attention]": Key(
        10000.0, "the base of the rotary embedding in sliding layers", "rope-local-global-theta"
    ),
    "rope_type": Key("default", ROPE),
    "rope_type[full_attention]": Key("default", ROPE, "rope-proportional-missing"),
    "rope_type[sliding_attention]": Key("default", ROPE),
    "partial_rotary_factor": Key(1.0, "how much of a head is rotated", "rope-partial-ignored"),
    "partial_rotary_factor[full_attention]": Key(
        1.0, "how much of a head of full layers is rotated", "rope-partial-ignored"
    ),
    "factor": Key(1.0, "by how much positions are stretched"),
    "low_freq_factor": Key(NEEDED, ROPE),
    "high_freq_factor": Key(NEEDED, ROPE),
    "original_max_position_embeddings": Key(NEEDED, ROPE),
    "beta_fast": Key(32.0, ROPE),
    "beta_slow": Key(1.0, ROPE),
    "attention_factor": Key(None, "what multiplies cosines and sines", "rope-yarn-attn-factor"),
    "short_factor": Key(NEEDED, ROPE),
    "long_factor": Key(NEEDED, ROPE),
    "head_dim": Key(None, HEADS, "attn-head-dim-derived"),
    "global_head_dim": Key(None, HEADS),
    "num_attention_heads": Key(NEEDED, HEADS),
    "num_key_value_heads": Key(None, HEADS),
    "num_global_key_value_heads": Key(None, HEADS),
    "rms_norm_eps": Key(1e-6, "what is added under the root of every norm", "rms-eps-wrong"),
    "layer_norm_epsilon": Key(1e-5, "what is added under the root of every norm"),
    "sliding_window": Key(
        None, "how far sliding layers see", "mask-layer-types-ignored", (("mistral", 4096),)
    ),
    "use_sliding_window": Key(False, "whether any layer slides", "mask-layer-types-ignored"),
    "max_window_layers": Key(None, KINDS, "mask-layer-types-ignored"),
    "layer_types": Key(None, KINDS, "mask-layer-types-ignored"),
    "tie_word_embeddings": Key(
        False,
        "whether the head is the embedding",
        "tied-head-mishandled",
        (("gpt2", True), ("gemma", True)),
    ),
    "attention_bias": Key(False, "whether attention's projections have biases", "qkv-bias-dropped"),
    "mlp_bias": Key(False, "whether projections of the MLP have biases", "o-proj-mlp-bias-dropped"),
    "final_logit_softcapping": Key(None, "what caps the logits", "final-softcap-missing"),
    "attn_logit_softcapping": Key(None, "what caps the scores", "attn-softcap-missing"),
    "query_pre_attn_scalar": Key(None, "the scale of the scores", "attn-scale-pre-attn-scalar"),
    "num_experts": Key(NEEDED, "how many experts a layer has"),
    "num_experts_per_tok": Key(8, "how many experts work for a token"),
    "norm_topk_prob": Key(
        False, "whether the weights of the chosen experts sum to 1", "moe-renorm-missing"
    ),
    "decoder_sparse_step": Key(1, "which layers have experts"),
    "mlp_only_layers": Key([], "which layers have no experts"),
    "moe_intermediate_size": Key(NEEDED, "the width of an expert"),
    "enable_moe_block": Key(False, "whether experts stand beside the MLP"),
    "attention_k_eq_v": Key(False, "whether full layers use keys as values"),
    "num_kv_shared_layers": Key(
        0, "how many layers take keys and values of earlier ones", "kv-sharing-ignored"
    ),
    "hidden_size_per_layer_input": Key(0, "the width of each layer's own input"),
    "use_double_wide_mlp": Key(False, "the width of the MLP in layers that share keys"),
    "hidden_act": Key(
        NEEDED, "the activation of the MLP", None, (("gpt2", "gelu_new"), ("qwen", "silu"),
        ("llama", "silu"), ("mistral", "silu"), ("gemma", "gelu_pytorch_tanh")),
    ),
    "scale_attn_by_inverse_layer_idx": Key(False, "the scale of the scores"),
    "scale_attn_weights": Key(True, "the scale of the scores"),
    "hidden_size": Key(NEEDED, "the width of the stream"),
    "intermediate_size": Key(NEEDED, "the width of the MLP"),
    "num_hidden_layers": Key(NEEDED, "how many layers there are"),
    "vocab_size": Key(NEEDED, "how many tokens there are"),
}  # fmt: skip

# Other spellings of a key.
SPELLINGS = {
    "hidden_activation": "hidden_act",
    "activation_function": "hidden_act",
    "top_k_experts": "num_experts_per_tok",
    "num_local_experts": "num_experts",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "n_ctx": "max_position_embeddings",
    "rms_eps": "rms_norm_eps",
    "norm_eps": "rms_norm_eps",
    "rope_base": "rope_theta",
}
# Values that are one thing under several names.
SAME_VALUES = {"swish": "silu", "gelu_new": "gelu_pytorch_tanh", "none": "default"}

# Keys of which any wrong value is the fault; of others only what engines take by themselves is.
ANY_VALUE = ("rms_norm_eps",)

# (key, value of the checkpoint, value of the port) -> a closer fault than the key's own.
CLOSER: dict[tuple[str, Any, Any], str] = {
    ("rope_type", "llama3", "default"): "rope-llama3-scaling-missing",
    ("rope_type", "linear", "default"): "rope-global-linear-scale-missing",
    ("rope_type", "dynamic", "default"): "rope-dynamic-ntk",
    ("rope_type", "longrope", "default"): "rope-longrope-mscale",
    ("rope_type", "yarn", "default"): "rope-yarn-attn-factor",
    ("hidden_act", "gelu_pytorch_tanh", "silu"): "act-silu-vs-gelu",
    ("hidden_act", "silu", "gelu_pytorch_tanh"): "act-silu-vs-gelu",
    ("hidden_act", "gelu_pytorch_tanh", "gelu"): "gelu-erf-vs-tanh",
    ("hidden_act", "gelu", "gelu_pytorch_tanh"): "gelu-erf-vs-tanh",
    ("norm_topk_prob", False, True): "moe-renorm-spurious",
}
