"""Small random models of every architecture, wide enough for four ranks, packed or not.

Their configs are those of the committed witnesses with other sizes; a rank of four has 64 columns
of each matrix that is cut so, which is two groups of 32.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from lockstep.parity.quantizing import quantize, recipe_of
from lockstep.reference.checkpoint.config import read_config

WITNESSES = Path(__file__).parent / "witnesses"
SIZES = {
    "hidden_size": 64, "intermediate_size": 256, "head_dim": 64, "global_head_dim": 64,
    "moe_intermediate_size": 128, "hidden_size_per_layer_input": 32, "vocab_size": 110,
}  # fmt: skip
WEDLM = {
    "model_type": "wedlm", "architectures": ["WeDLMForCausalLM"], "attention_bias": False,
    "qk_norm": True,
}  # fmt: skip
GPT2 = {"n_embd": 256, "n_head": 4, "n_inner": 256, "vocab_size": 110}
SOURCES = {
    "llama": "llama/biased_llama3", "mistral": "llama/mistral_window", "qwen2": "llama/qwen2_yarn",
    "qwen3": "models/untied_float32", "qwen3_moe": "qwen3_moe/separate", "gpt2": "gpt2/original",
    "gemma4": "gemma4/dense", "gemma4 sparse": "gemma4/sparse",
    "gemma4 effective": "gemma4/effective", "wedlm": "models/untied_float32",
}  # fmt: skip
# mlx-lm's names for a stack of experts, which may be written as one tensor.
STACKS = ((".mlp.experts.", ".mlp.switch_mlp."), (".experts.", ".experts.switch_glu."))


def wide_model(folder: Path, name: str, *, mode: str | None = None) -> Path:
    """Write a model with random weights in float32, packed in a mode of MLX's if one is given."""
    dense = folder / "dense"
    dense.mkdir(parents=True)
    raw = json.loads((WITNESSES / SOURCES[name] / "config.json").read_text())
    if name == "wedlm":
        raw |= WEDLM
    (dense / "config.json").write_text(json.dumps(resized(raw)))
    parsed = read_config(dense / "config.json", ignore=())
    rng = np.random.default_rng(len(name))
    tensors = {
        spelled(one): drawn(one, shape, rng)
        for one, shape in parsed.architecture.tensors(parsed.config).items()
    }
    save_file(tensors, dense / "model.safetensors")
    if mode is None:
        return dense
    quantize(dense, folder / "packed", recipe_of(None, 32 if mode == "affine" else None, mode))
    return folder / "packed"


def resized(raw: dict) -> dict:
    """Return a config with the sizes of this file; those that are absent or null stay so."""
    if "text_config" in raw:
        return raw | {"text_config": resized(raw["text_config"])}
    sizes = GPT2 if raw["model_type"] == "gpt2" else SIZES
    found = {key: value for key, value in sizes.items() if raw.get(key)}
    if "per_layer_config" in raw:  # full layers of the witness have wider heads than others
        found["per_layer_config"] = {one: {"head_dim": 128} for one in raw["per_layer_config"]}
    if raw["model_type"] == "gpt2":
        found |= GPT2
    return raw | found


def spelled(name: str) -> str:
    first, second = STACKS
    return name.replace(*first) if ".mlp.experts." in name else name.replace(*second)


def drawn(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw a tensor so that every part of it matters.

    Heads are not too long: Gemma 4 does not scale scores, and probabilities of 0 and 1 make a last
    bit of one side a large difference.
    """
    noise = rng.standard_normal(shape)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return (0.4 * np.exp(0.3 * noise)).astype(np.float32)
    if name.endswith("layer_scalar") or (len(shape) == 1 and not name.endswith("bias")):
        return np.exp(0.3 * noise).astype(np.float32)
    return (noise * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)).astype(np.float32)
