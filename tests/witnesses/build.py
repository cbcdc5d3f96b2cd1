"""Making checkpoints and their expected values with transformers, torch and mlx-lm.

The scripts that make the committed witnesses and the live comparisons in `tests/peers` share it.
Nothing of Lockstep is imported here: what this file computes is the outside truth.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils.logging import disable_progress_bar

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PROMPT, SHORT, GREEDY = 40, 23, 16  # tokens of the long prompt, of the short one, generated
SECTIONS = ("quantization", "quantization_config")
MINIFLOATS = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}
# What is dealt out where modes are mixed.
EVERY_MODE = [
    *({"bits": bits, "group_size": size, "mode": m} for (bits, size), m in MINIFLOATS.items()),
    {"bits": 6, "group_size": 32, "mode": "affine"},
    {"bits": 8, "group_size": 32, "mode": "affine"},
]

# Query heads times head_dim is not hidden_size, and 1 < key/value heads < query heads.
SMALL = {
    "vocab_size": 150,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
# Every matrix has inputs in multiples of 128, so any group size fits anywhere.
WIDE = SMALL | {"hidden_size": 128, "num_attention_heads": 8, "head_dim": 32}

Predicate = Callable[[str, Any], bool | dict[str, Any]]


def settle() -> None:
    """Suit tiny models: no progress bar for every file, and no second thread that waits."""
    disable_progress_bar()
    torch.set_num_threads(1)


def random_model(seed: int, **config: Any) -> Qwen3ForCausalLM:
    """Return a float32 model whose every parameter is random, the gains and biases too."""
    model = Qwen3ForCausalLM(Qwen3Config(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_spread(name, noise))
    return model


def _spread(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Scale noise so that every part of the model matters to the logits."""
    if "norm" in name:
        return 1 + 0.3 * noise
    if name.endswith("bias"):
        return 0.5 * noise
    if "embed_tokens" in name:
        return 0.3 * noise
    return 1.5 * noise / noise.shape[1] ** 0.5


def save(
    model: Qwen3ForCausalLM,
    folder: Path,
    *,
    dtype: str,
    shard: str | None = None,
    old_spelling: bool = False,
) -> Path:
    """Store a model as transformers does, in shards of at most `shard`."""
    model.to(DTYPES[dtype]).save_pretrained(folder, max_shard_size=shard or "1GB")
    model.float()
    (folder / "generation_config.json").unlink(missing_ok=True)
    if old_spelling:
        edit_config(folder, _spell_as_before_5)
    return folder


def _spell_as_before_5(config: dict[str, Any]) -> None:
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change config.json in place."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    edit(config)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def convert(
    source: Path,
    target: Path,
    *,
    bits: int,
    group_size: int,
    predicate: Predicate | None = None,
    mode: str = "affine",
) -> Path:
    """Quantise a folder with mlx-lm's converter, and leave only what makes a checkpoint."""
    write_tokenizer(source)
    mlx_lm.convert(
        str(source),
        str(target),
        quantize=True,
        q_bits=bits,
        q_group_size=group_size,
        q_mode=mode,
        quant_predicate=predicate,
    )
    return target


def write_tokenizer(folder: Path) -> None:
    """Put a tokenizer into a folder: mlx-lm opens none without."""
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def quantize_by_hand(folder: Path, *, bits: int, group_size: int) -> Path:
    """Quantise in place what mlx-lm's Qwen3 cannot hold: projections with a bias."""
    path = folder / "model.safetensors"
    packed: dict[str, mx.array] = {}
    for name, value in mx.load(str(path)).items():
        if value.ndim < 2:
            packed[name] = value
            continue
        parts = mx.quantize(value, group_size=group_size, bits=bits)
        packed |= zip(_triple(name), parts, strict=True)
    mx.eval(packed)
    mx.save_safetensors(str(path), packed, metadata={"format": "mlx"})
    section = {"group_size": group_size, "bits": bits, "mode": "affine"}
    edit_config(folder, lambda config: config.update(dict.fromkeys(SECTIONS, section)))
    return folder


def _triple(name: str) -> tuple[str, str, str]:
    module = name.removesuffix(".weight")
    return name, f"{module}.scales", f"{module}.biases"


def truth(folder: Path, *, attention: str = "eager", dtype: str = "float32") -> Qwen3ForCausalLM:
    """Return transformers' model of a folder, dequantised in float32 where it is packed."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "quantization" not in config:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], attn_implementation=attention
        ).eval()
    plain = {key: value for key, value in config.items() if key not in SECTIONS}
    model = Qwen3ForCausalLM(Qwen3Config(**plain, attn_implementation=attention)).eval()
    weights = dequantized(folder, {name: w.shape for name, w in model.named_parameters()})
    rest = model.load_state_dict(weights, strict=False)
    tied = ["lm_head.weight"] if model.config.tie_word_embeddings else []
    if rest.missing_keys != tied or rest.unexpected_keys:
        raise ValueError(f"{folder}: {rest}")
    return model.to(DTYPES[dtype])


def dequantized(folder: Path, shapes: dict[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Return the weights of a folder in float32, unpacked by MLX from scales widened first."""
    stored: dict[str, mx.array] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        stored |= mx.load(str(path))
    found = {}
    for name, shape in shapes.items():
        weight, scales, biases = (stored.get(part) for part in _triple(name))
        if scales is not None:
            weight = unpacked(weight, scales, biases, columns=shape[1])
        found[name] = torch.from_numpy(np.array(weight.astype(mx.float32)))
    return found


def unpacked(
    packed: mx.array, scales: mx.array, biases: mx.array | None, *, columns: int
) -> mx.array:
    """Dequantise one matrix of a known width in float32. Without biases its codes are floats."""
    sizes: dict[str, Any] = {
        "group_size": columns // scales.shape[-1],
        "bits": 32 * packed.shape[-1] // columns,
    }
    if biases is None:
        mode = MINIFLOATS[sizes["bits"], sizes["group_size"]]
        return mx.dequantize(packed, scales, **sizes, mode=mode, dtype=mx.float32)
    return mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), **sizes)


def prompts(seed: int, vocab_size: int) -> np.ndarray:
    """Draw the two prompts, (2, PROMPT)."""
    return np.random.default_rng(seed).integers(0, vocab_size, (2, PROMPT))


@torch.no_grad()
def logits(model: Qwen3ForCausalLM, tokens: np.ndarray, **kwargs: Any) -> np.ndarray:
    """Return transformers' logits in float32, (B, L, V)."""
    return model(torch.tensor(tokens), **kwargs).logits.float().numpy()


def logits_at(model: Qwen3ForCausalLM, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the logits of tokens that stand at given positions of one sequence."""
    # Without a mask, transformers takes a gap for the border between two packed sequences.
    seen = torch.ones(tokens.shape, dtype=torch.long)
    return logits(model, tokens, position_ids=torch.tensor(positions), attention_mask=seen)


def greedy(model: Qwen3ForCausalLM, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Continue each row by `generate`: ids (B, GREEDY), their logits (B, GREEDY, V)."""
    out = model.generate(
        torch.tensor(tokens),
        attention_mask=torch.ones(tokens.shape, dtype=torch.long),
        do_sample=False,
        max_new_tokens=GREEDY,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    seen = torch.stack(out.logits, dim=1).float().numpy()
    return out.sequences[:, tokens.shape[1] :].numpy(), seen


def greedy_unequal(model: Qwen3ForCausalLM, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Continue the first row, and the first SHORT tokens of the second, each by itself."""
    rows = [greedy(model, tokens[:1]), greedy(model, tokens[1:, :SHORT])]
    ids, seen = zip(*rows, strict=True)
    return np.concatenate(ids), np.concatenate(seen)


def activations(model: Qwen3ForCausalLM, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the output of every module that has one of its own, by forward hooks."""
    found: dict[str, np.ndarray] = {}

    def listen(name: str) -> Callable[..., None]:
        return lambda module, args, output: found.update({name: output.float().numpy()})

    # A container's output is that of its last part, and the tables of rope are no activation.
    owners = {
        n: m for n, m in model.named_modules() if not n.endswith(("rotary_emb", "self_attn", "mlp"))
    }
    for name in ("", "model", "model.layers"):
        owners.pop(name)
    hooks = [module.register_forward_hook(listen(name)) for name, module in owners.items()]
    logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return found


def margins(seen: np.ndarray) -> np.ndarray:
    """Return how far the best logit is ahead of the next, in standard deviations of the logits."""
    best = np.sort(seen, axis=-1)
    return (best[..., -1] - best[..., -2]) / seen.std()


def mixed(seed: int, grid: list[dict[str, Any]] | None = None) -> Predicate:
    """Return a predicate that deals out every width and group size in turn, in shuffled order.

    `grid` lists others to deal out, modes too.
    """
    affine = [{"bits": b, "group_size": g} for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
    grid = list(grid or affine)
    random.Random(seed).shuffle(grid)
    dealt: dict[str, dict[str, Any]] = {}

    def predicate(path: str, module: Any) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized"):
            return False
        return dealt.setdefault(path, grid[len(dealt) % len(grid)])

    return predicate
