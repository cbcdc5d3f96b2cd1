"""Making adapters with peft and mlx-lm, and what each computes with them.

The script that makes the committed witnesses and the live comparisons share it. Nothing of Lockstep
is imported here. Truth is float32 on the stored values: peft on transformers for LoRA, mlx-lm for
its own format and for DoRA.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.lora import main as mlx_lora_command
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def peft_adapter(model: Any, folder: Path, seed: int, **config: Any) -> PeftModel:
    """Put a random adapter on a transformers model and save it as PEFT does."""
    with warnings.catch_warnings():  # peft asks transformers for what it calls otherwise now
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)  # it is wary of tied heads
        adapted = get_peft_model(model, LoraConfig(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "lora_A" in name or "lora_B" in name:  # stronger ones amplify rounding errors
                parameter.copy_(0.5 * noise / parameter.shape[1] ** 0.5)
            elif "lora_embedding" in name:
                parameter.copy_(0.3 * noise)
            elif "lora_magnitude" in name or "modules_to_save" in name:
                parameter.mul_(1 + 0.2 * noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says that tables are saved along
        adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return adapted


def one_by_one(adapter: Path, folder: Path, count: int) -> Path:
    """Cut an adapter of stacks into one for each expert, as peft saved it for older models."""
    held = load_file(adapter / "adapter_model.safetensors")
    cut: dict[str, torch.Tensor] = {}
    for name, value in held.items():
        path, found, end = name.partition(".experts.")
        if not found:
            cut[name] = value
            continue
        inner = end.startswith("base_layer")  # the last in the alphabet is the inner one
        for expert in range(count):
            parts = value.reshape(count, -1, value.shape[-1])[expert] if "lora_A" in end else None
            if parts is None:
                parts = value.reshape(value.shape[0], -1, count)[..., expert]
            rows = parts.chunk(2) if inner and "lora_B" in end else [parts, parts]
            names = ("gate_proj", "up_proj") if inner else ("down_proj",)
            for one, part in zip(names, rows, strict=False):
                matrix = end.removeprefix("base_layer.")
                cut[f"{path}.experts.{expert}.{one}.{matrix}"] = part.contiguous().clone()
    folder.mkdir()
    save_file(cut, folder / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    config |= {"target_parameters": None}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def mlx_model(folder: Path, adapter: Path | None = None) -> Any:
    """Load a folder with mlx-lm in float32, the scales of packed weights widened first."""
    model = load_model(folder)[0]
    model.set_dtype(mx.float32)
    return model if adapter is None else load_adapters(model, str(adapter))


def mlx_adapter(base: Path, folder: Path, seed: int, **arguments: Any) -> Path:
    """Save a random adapter as mlx-lm's trainer does: the trained tensors, and every argument."""
    model, rng = mlx_model(base), np.random.default_rng(seed)
    dora = arguments["fine_tune_type"] == "dora"
    parameters = arguments["lora_parameters"] | {"dropout": 0.0}
    linear_to_lora_layers(model, arguments["num_layers"], parameters, use_dora=dora)
    leaves = {}
    for name, value in tree_flatten(model.parameters()):
        noise = mx.array(rng.standard_normal(value.shape).astype(np.float32))
        if name.endswith(("lora_a", "lora_b")):
            leaves[name] = 0.3 * noise / value.shape[0] ** 0.5
        elif name.endswith(".m"):
            leaves[name] = value * (1 + 0.2 * noise)
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "adapters.safetensors"), leaves)
    text = json.dumps(arguments | {"lora_parameters": parameters}, indent=2)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
    return folder


def mlx_trained(base: Path, folder: Path, scratch: Path, lines: list[str]) -> Path:
    """Train an adapter by mlx-lm's own command on a few lines of text."""
    scratch.mkdir(parents=True)
    for part in ("train", "valid"):
        rows = "\n".join(json.dumps({"text": line}) for line in lines)
        (scratch / f"{part}.jsonl").write_text(rows + "\n", encoding="utf-8")
    settings = scratch / "settings.yaml"
    keys = '["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"]'
    rank = f"lora_parameters: {{rank: 2, scale: 20.0, dropout: 0.0, keys: {keys}}}\n"
    settings.write_text(rank, encoding="utf-8")
    before = sys.argv
    sys.argv = [
        "mlx_lm.lora", "--train", "--model", str(base), "--data", str(scratch),
        "--adapter-path", str(folder), "--config", str(settings), "--num-layers", "2",
        "--iters", "20", "--batch-size", "2", "--learning-rate", "1e-3", "--val-batches", "1",
        "--max-seq-length", "32", "--save-every", "100",
    ]  # fmt: skip
    try:
        mlx_lora_command()
    finally:
        sys.argv = before
    for path in folder.glob("0*_adapters.safetensors"):
        path.unlink()
    return folder


def mlx_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    return np.array(model(mx.array(tokens)).astype(mx.float32))


def unpacked(model: Any) -> Any:
    """Return an mlx-lm model with its packed projections made dense, in float32."""
    import mlx.nn as nn

    dense = []
    for name, module in model.named_modules():
        if isinstance(module, nn.QuantizedLinear):
            weight = mx.dequantize(
                module.weight, module.scales, module.biases,
                group_size=module.group_size, bits=module.bits,
            )  # fmt: skip
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in module)
            linear.weight = weight
            if "bias" in module:
                linear.bias = module.bias
            dense.append((name, linear))
    model.update_modules(tree_unflatten(dense))
    return model
