"""What llama.cpp's converter writes of Gemma 4 into a GGUF file.

Nothing of Lockstep is imported here. Source: `Gemma4Model` in conversion/gemma.py of llama.cpp.
"""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SLIDING, GROUPS = "sliding_attention", "num_key_value_heads"
FIRST = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
TURNS = ("<|turn>", "<turn|>", "<|tool_response>")
TEXTS = (
    *("a\n\n\nb\n", "<bos>x<|turn>user\nhi<turn|>\n", "  \n \n", "▁ ▁▁", "<0x41> <unk>"),
    *("the  quick\tfox", "\n", "<|tool_response>", "日本 語\n", "x" + "\n" * 19),
)
# Names that the converter gives by itself; the others are in the map of the package.
OWN_NAMES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    # llama.cpp reads them; its converter writes both as one.
    "experts.gate_proj.weight": "ffn_gate_exps.weight",
    "experts.up_proj.weight": "ffn_up_exps.weight",
}


def add_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    """Write the keys, with those of full layers under the plain names."""
    config = plain(config)
    layers, shared = config.num_hidden_layers, config.num_kv_shared_layers
    slides = [kind == SLIDING for kind in config.layer_types]
    wide, groups = config.full.get("head_dim", config.head_dim), config.full.get(GROUPS)
    writer.add_block_count(layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for name, own, other in (
        ("key_length", wide, config.head_dim),
        ("value_length", wide, config.head_dim),
        ("rope_dimension_count", wide, config.head_dim),
        ("rope_freq_base", theta(config, "full_attention"), theta(config, SLIDING)),
    ):
        getattr(writer, f"add_{name}")(own)
        getattr(writer, f"add_{name}_swa")(other)
    own = config.num_key_value_heads
    writer.add_head_count_kv(own if groups is None else [own if one else groups for one in slides])
    inner = config.intermediate_size
    double = [inner * (1 if layer < layers - shared else 2) for layer in range(layers)]
    writer.add_feed_forward_length(double if config.use_double_wide_mlp else inner)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def plain(config: Any) -> SimpleNamespace:
    """Return the keys of a config; `full` has what transformers 5 says of full layers alone."""
    raw = config.to_dict()
    return SimpleNamespace(**raw, full=next(iter(raw["per_layer_config"].values()), {}))


def theta(config: Any, kind: str) -> float:
    return config.rope_parameters[kind]["rope_theta"]


def divisors(config: Any) -> np.ndarray:
    """Return the divisors of the frequencies of full layers: 1 for pairs that turn, or 1e30."""
    config = plain(config)
    pairs = config.full.get("head_dim", config.head_dim) // 2
    part = config.rope_parameters["full_attention"]["partial_rotary_factor"]
    turned = int(2 * pairs * part / 2)
    return np.array([1.0] * turned + [1e30] * (pairs - turned), np.float32)


def stored_name(name: str, names: gguf.TensorNameMap) -> str:
    """Return the name in the file; a layer's number and the experts get a `.weight`."""
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    if rest in OWN_NAMES:
        return f"blk.{layer}.{OWN_NAMES[rest]}"
    return f"{names.get_name(name.removesuffix('.weight'))}.weight"


def plain_router(name: str) -> str | None:
    """llama.cpp keeps routers in float32."""
    return "F32" if name.endswith("router.proj.weight") else None


def trained_tokenizer() -> Tokenizer:
    """Train a tokenizer of Gemma's kind: spaces are written as U+2581, rare characters as bytes.

    As in the published one, no token has a newline beside another character.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(back)
    texts = ["hello world it's we'll be 12345 a test of the tokenizer", "\n" * 8, "the quick fox"]
    known = [*FIRST, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=known, show_progress=False)
    tokenizer.train_from_iterator([text for text in texts for _ in range(5)], trainer)
    raw = json.loads(tokenizer.to_str())
    # Bytes are plain tokens: a text does not have them by name.
    raw["added_tokens"] = [one for one in raw["added_tokens"] if one["content"] in FIRST]
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in TURNS])
    bos = ("<bos>", tokenizer.token_to_id("<bos>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[bos]
    )
    return tokenizer


def writes_tokenizer(
    tokenizer: Tokenizer, *, size: int, adds_bos: bool = True
) -> Callable[[gguf.GGUFWriter], None]:
    """Return what writes a tokenizer of Gemma into a file, as the converter does."""
    raw = json.loads(tokenizer.to_str())
    special = {token["id"] for token in raw["added_tokens"]}
    texts = [tokenizer.id_to_token(number) or f"[PAD{number}]" for number in range(size)]

    def kind(number: int) -> int:
        if number >= tokenizer.get_vocab_size():
            return gguf.TokenType.UNUSED
        if texts[number].startswith("<0x"):
            return gguf.TokenType.BYTE
        return gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(texts)
        writer.add_token_scores([-1000.0] * size)
        writer.add_token_types([kind(number) for number in range(size)])
        writer.add_token_merges([" ".join(pair) for pair in raw["model"]["merges"]])
        for role in ("bos", "eos", "unk", "pad"):
            getattr(writer, f"add_{role}_token_id")(tokenizer.token_to_id(f"<{role}>"))
        writer.add_add_space_prefix(False)
        writer.add_add_bos_token(adds_bos)

    return add
