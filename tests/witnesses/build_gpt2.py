"""Making GPT-2 checkpoints in every form that people have them. Nothing of Lockstep is imported."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from tests.witnesses import build

# Three heads, and a width that is no power of two: a head's columns are not found by luck.
SMALL = {
    "vocab_size": 120,
    "n_positions": 64,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 3,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
PACKABLE = SMALL | {"n_embd": 64, "n_head": 4}
MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def random_model(seed: int, **config: Any) -> GPT2LMHeadModel:
    """Return a float32 model whose every parameter is random, the gains and biases too."""
    model = GPT2LMHeadModel(GPT2Config(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(spread(name, noise))
    return model


def spread(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Scale noise so that every part of the model matters to the logits."""
    if name.endswith("bias"):
        return 0.5 * noise
    if "ln_" in name:
        return 1 + 0.3 * noise
    if name.endswith(MATRICES):  # stored (inputs, outputs)
        return 1.5 * noise / noise.shape[0] ** 0.5
    return 0.4 * noise


def as_on_the_hub(folder: Path, *, masked_bias: bool = False) -> Path:
    """Rewrite a folder in place as the original files are: no prefix, masks, an old config."""
    path = folder / "model.safetensors"
    tensors = {n.removeprefix("transformer."): t for n, t in load_file(path).items()}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    lower = torch.ones([config["n_positions"]] * 2, dtype=torch.uint8).tril()
    for layer in range(config["n_layer"]):
        tensors[f"h.{layer}.attn.bias"] = lower[None, None].clone()
        if masked_bias:  # in files of a few years; mlx-lm cannot open those
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, path, metadata={"format": "pt"})
    build.edit_config(folder, spell_as_of_old)
    return folder


def spell_as_of_old(config: dict[str, Any]) -> None:
    """Keep the keys of the original config.json, and add those that are gone since."""
    new = ("n_inner", "tie_word_embeddings", "scale_attn_by_inverse_layer_idx", "dtype")
    for key in (*new, "scale_attn_weights", "reorder_and_upcast_attn", "add_cross_attention"):
        config.pop(key, None)
    config |= {"n_ctx": config["n_positions"], "n_special": 0, "predict_special_tokens": True}
    config["task_specific_params"] = {"text-generation": {"do_sample": True, "max_length": 50}}


def truth(folder: Path, *, attention: str = "eager") -> GPT2LMHeadModel:
    """Return transformers' model of a folder in float32, dequantised where it is packed.

    What mlx-lm wrote is renamed and turned back here, packed or not.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = mx.load(str(folder / "model.safetensors"))
    if "model.wte.weight" not in files:
        return GPT2LMHeadModel.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention
        ).eval()
    plain = {key: value for key, value in config.items() if key not in build.SECTIONS}
    model = GPT2LMHeadModel(GPT2Config(**plain, attn_implementation=attention)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = from_mlx(files, name.replace("transformer.", "model."), parameter.shape)
            parameter.copy_(torch.from_numpy(value))
    return model


def from_mlx(files: dict[str, mx.array], name: str, shape: torch.Size) -> np.ndarray:
    """Return a tensor of an mlx-lm file as transformers holds it."""
    turned = name.endswith(MATRICES)
    weight, module = files[name], name.removesuffix(".weight")
    if f"{module}.scales" in files:
        scales, biases = files[f"{module}.scales"], files[f"{module}.biases"]
        weight = build.unpacked(weight, scales, biases, columns=shape[0] if turned else shape[1])
    value = np.array(weight.astype(mx.float32))
    return value.T if turned else value


def activations(model: GPT2LMHeadModel, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the output of every module that has one array of its own, by forward hooks."""
    found: dict[str, np.ndarray] = {}

    def listen(name: str) -> Any:
        return lambda module, args, output: found.update({name: output.float().numpy()})

    # A container, or a dropout that does nothing, hands on what its last part gives.
    silent = ("", "transformer", "transformer.h")
    ends = (".attn", ".mlp", "attn_dropout", "resid_dropout", "mlp.dropout")
    hooks = [
        module.register_forward_hook(listen(name))
        for name, module in model.named_modules()
        if name not in silent and not name.endswith(ends)
    ]
    build.logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return found
