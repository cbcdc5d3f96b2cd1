"""GGUF files as llama.cpp's converter makes them, written with the gguf package.

Nothing of Lockstep is imported here. What the converter does to a model is written down from
conversion/llama.py, qwen.py and gpt2.py of llama.cpp: names, the moved rows of Llama's queries and
keys, GPT-2's matrices turned, norms in float32, the divisors of rotary frequencies. Gemma 4's part
is in `gguf_gemma4.py`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.witnesses import gguf_gemma4

Types = gguf.GGMLQuantizationType
KNOWN = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
}
MOVED = ("llama", "mistral")  # whose rows of queries and keys are moved
TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2 holds them as (inputs, outputs)
PLAIN = "wpe.weight"  # the table of positions is kept in float32
# gguf-py reads these and cannot write them.
READ_ONLY = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")
# Where the float16 scales of a block lie, in the formats that are drawn.
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
}
# What they are multiplied with, about: weights come out with a standard deviation near 1.
SIZES = {"Q2_K": 15.0, "Q3_K": 36.0, "Q4_K": 260.0, "Q5_K": 520.0, "Q6_K": 1300.0, "IQ4_NL": 65.0}


def write_gguf(
    path: Path,
    model: Any,
    kind: str | Callable[[str], str],
    *,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
    seed: int = 0,
    most: int = 0,
    fused: bool = True,
) -> dict[str, torch.Tensor]:
    """Write a transformers model, and return the values that the file holds, by their HF names.

    `kind` is the type of every matrix, or says it for each name. `most` is how many tensors a file
    may have; where they are more, several are written. `fused` says whether Gemma 4's experts are.
    """
    config, arch = model.config, KNOWN[model.config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=most)
    {"gpt2": add_gpt2, "gemma4_text": gguf_gemma4.add_keys}.get(
        config.model_type, add_hyperparameters
    )(writer, config)
    if tokenizer is not None:
        tokenizer(writer)
    if (divisors := rope_divisors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    held = {}
    scalars = [one for one in model.named_buffers() if one[0].endswith("layer_scalar")]
    for name, parameter in [*model.named_parameters(), *scalars]:
        values = parameter.detach().float().numpy()
        values = np.ascontiguousarray(values.T) if name.endswith(TURNED) else values
        matrix = values.ndim > 1 and not name.endswith(PLAIN)
        wanted = (kind if isinstance(kind, str) else kind(name)) if matrix else "F32"
        back = []
        whole = fused and arch == gguf.MODEL_ARCH.GEMMA4
        for part, stored in parts(name, permuted(values, name, config), whole=whole).items():
            raw, read = encode(stored, wanted, np.random.default_rng([seed, len(held), len(back)]))
            writer.add_tensor(file_name(part, names, arch), raw, raw_dtype=Types[wanted])
            back.append(read)
        joined = np.concatenate(back, axis=1) if len(back) > 1 else back[0]
        back_again = unpermuted(joined, name, config)
        back_again = back_again.T if name.endswith(TURNED) else back_again
        held[name] = torch.from_numpy(back_again.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def file_name(name: str, names: gguf.TensorNameMap, arch: gguf.MODEL_ARCH) -> str:
    if arch == gguf.MODEL_ARCH.GEMMA4:
        return gguf_gemma4.stored_name(name, names)
    stem, _, suffix = name.rpartition(".")
    return f"{names.get_name(stem)}.{suffix}"


def parts(name: str, values: np.ndarray, *, whole: bool) -> dict[str, np.ndarray]:
    """Return the tensors that the converter makes of one, with the names that it had on the hub."""
    if name.endswith("experts.gate_up_proj") and not whole:
        gate, up = np.split(values, 2, axis=1)
        path = name.removesuffix("gate_up_proj")
        return {f"{path}gate_proj.weight": gate, f"{path}up_proj.weight": up}
    plain = name.endswith(("weight", "bias", "scale"))
    return {name if plain else f"{name}.weight": values}


def add_gpt2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def add_hyperparameters(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "qwen3_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type in MOVED:
        writer.add_rope_dimension_count(head_dim)
    scaling = config.rope_parameters
    if scaling.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def rope_divisors(config: Any) -> np.ndarray | None:
    """Return Llama 3's divisors of the frequencies, worked out as llama.cpp's converter does."""
    if config.model_type == "gemma4_text":
        return gguf_gemma4.divisors(config)
    scaling = getattr(config, "rope_parameters", None)
    if not scaling or scaling.get("rope_type") != "llama3":
        return None
    head_dim = config.head_dim
    waves = 2 * np.pi * scaling["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    smooth = (original / waves - low) / (high - low)
    blended = 1 / ((1 - smooth) / factor + smooth)
    divisors = np.where(
        waves > original / low, factor, np.where(waves < original / high, 1, blended)
    )
    return divisors.astype(np.float32)


def permuted(values: np.ndarray, name: str, config: Any) -> np.ndarray:
    """Move the rows of Llama's queries and keys as the converter does."""
    heads = moved_heads(name, config)
    if heads is None:
        return values
    cut = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return cut.swapaxes(1, 2).reshape(values.shape)


def unpermuted(values: np.ndarray, name: str, config: Any) -> np.ndarray:
    """Find each row again by moving row numbers, not by undoing the formula."""
    if moved_heads(name, config) is None:
        return values
    order = permuted(np.arange(len(values)), name, config)
    back = np.empty_like(values)
    back[order] = values
    return back


def moved_heads(name: str, config: Any) -> int | None:
    if config.model_type not in MOVED or not name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
        return None
    return config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads


def encode(
    values: np.ndarray, kind: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a tensor in a type, and what they stand for in float32.

    Blocks that the package cannot write are drawn: about as large as the values, and nothing else
    of them.
    """
    if kind in READ_ONLY:
        raw = drawn_blocks(values.shape, kind, rng, spread=float(values.std()))
    else:
        raw = gguf.quants.quantize(values, Types[kind])
    back = gguf.quants.dequantize(raw, Types[kind])
    return raw, np.asarray(back, np.float32).reshape(values.shape)


def drawn_blocks(
    shape: tuple[int, ...], kind: str, rng: np.random.Generator, *, spread: float
) -> np.ndarray:
    """Draw random blocks with scales that suit weights of a standard deviation of `spread`."""
    weights, size = gguf.GGML_QUANT_SIZES[Types[kind]]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // weights, size), np.uint8)
    for place in SCALES[kind]:
        step = rng.uniform(0.5, 1.5, blocks.shape[:-1]) * spread / SIZES[kind]
        step *= rng.choice([-1, 1], blocks.shape[:-1])
        blocks[..., place : place + 2] = step.astype("<f2")[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def loaded(model: Any, held: Mapping[str, torch.Tensor]) -> Any:
    """Give a transformers model the values that a file holds."""
    model.load_state_dict(dict(held), strict=False)
    return model.float().eval()


def byte_level_tokenizer(
    folder: Path, *, pre: str, size: int | None = None
) -> Callable[[gguf.GGUFWriter], None]:
    """Return what writes the tokenizer.json of a folder into a file, as the converter does.

    A model of `size` tokens gets names for those that the tokenizer lacks.
    """
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["id"]: token for token in raw["added_tokens"]}
    by_id = {number: text for text, number in raw["model"]["vocab"].items()}
    by_id |= {number: token["content"] for number, token in added.items()}
    kinds = gguf.TokenType

    def add(writer: gguf.GGUFWriter) -> None:
        tokens, types = [], []
        for number in range(size or max(by_id) + 1):
            special = added.get(number, {}).get("special")
            plain = kinds.UNUSED if number not in by_id else kinds.NORMAL
            types.append({True: kinds.CONTROL, False: kinds.USER_DEFINED}.get(special, plain))
            tokens.append(by_id.get(number, f"[PAD{number}]"))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(
            [one if isinstance(one, str) else " ".join(one) for one in raw["model"]["merges"]]
        )

    return add
