"""Write a checkpoint of a published model's shape with random weights, to measure speed on.

    python -m lockstep.parity.bench.shape qwen3-0.6b DIR --format mlx-4bit

The numbers hang on the names of the tensors alone, so each format holds the same model, as far as
it can. There is no tokenizer: prompts are ids. A model larger than memory is written in random
bits:

    python -m lockstep.parity.bench.shape gemma4-26b-a4b DIR --format random-4bit

The shape `narrow` is nobody's: one layer and one head, for long prompts where products are slow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstep.parity.bench.gguf_copy import write as write_gguf
from lockstep.parity.bench.gguf_types import WRITTEN, types_of
from lockstep.parity.bench.random_bits import write_random_bits
from lockstep.parity.bench.requantized import BY_LLAMA_CPP, requantize
from lockstep.parity.explaining.cost import REAL, write
from lockstep.parity.new_folder import check_new_folder, new_folder
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError

QWEN3_0_6B = REAL | {"rope_theta": 1e6}
NARROW = QWEN3_0_6B | {  # for long prompts on a device of slow products
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "num_hidden_layers": 1,
    "vocab_size": 1024,
}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4_26B_A4B = {
    "model_type": "gemma4_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "hidden_size": 2816,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "num_hidden_layers": 30,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "layer_types": 5 * [*5 * [SLIDING], FULL],
    "sliding_window": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "attention_bias": False,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
SHAPES = {"qwen3-0.6b": QWEN3_0_6B, "narrow": NARROW, "gemma4-26b-a4b": GEMMA4_26B_A4B}
RANDOM = "random-4bit"
DENSE = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
AFFINE = {f"mlx-{bits}bit": bits for bits in (2, 3, 4, 5, 6, 8)}
MINIFLOATS = ("mxfp4", "mxfp8", "nvfp4")
GGUF = {f"gguf-{name.lower()}": name for name in (*WRITTEN, *BY_LLAMA_CPP)}
FORMATS = (*DENSE, *AFFINE, *MINIFLOATS, *GGUF, RANDOM)


def write_shape(config: Mapping[str, Any], target: Path, form: str) -> Path:
    """Write a model into a new folder; return what is given as MODEL: the folder, or its GGUF file.

    Raises: InputError if the folder is there, ImportError where a package is missing that the
    format needs: gguf, and llama-cpp-python for Q4_K and its kin.
    """
    whole = check_new_folder(target, [])
    if form == RANDOM:
        with new_folder(whole) as folder:
            write_random_bits(folder, config, done=lambda name: None)
        return target
    if config["model_type"] != "qwen3":
        raise InputError("--format", f"{form}, but this shape is written as {RANDOM} alone")
    if form in DENSE:
        with new_folder(whole) as folder:
            write(folder, config, stored=DENSE[form])
        return target
    with dense(config) as source:
        if form not in GGUF:
            packed(source, target, form)
            return target
        with new_folder(whole) as folder:
            to_gguf(source, folder / "model.gguf", GGUF[form])
        return target / "model.gguf"


@contextmanager
def dense(config: Mapping[str, Any]) -> Iterator[Path]:
    """Give the model in bfloat16, in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        write(Path(folder), config)
        yield Path(folder)


def packed(source: Path, target: Path, form: str) -> None:
    from lockstep.parity.quantizing import quantize, recipe_of

    how = (AFFINE[form], 64, "affine") if form in AFFINE else (None, None, form)
    quantize(source, target, recipe_of(*how, [], []))


def to_gguf(source: Path, target: Path, kind: str) -> None:
    checkpoint = open_checkpoint(source)
    if kind in WRITTEN:
        write_gguf(checkpoint, target, types_of(checkpoint, kind))
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        whole = Path(folder) / "model.gguf"
        write_gguf(checkpoint, whole, types_of(checkpoint, None))
        requantize(whole, target, kind)


def resized(shape: str, *, layers: int | None = None, width: int | None = None) -> dict[str, Any]:
    """Return a shape's config, with another depth, or another width and all that goes with it.

    Raises: InputError if it is to have no layer.
    """
    config = dict(SHAPES[shape])
    if layers is not None and layers < 1:
        raise InputError("--layers", f"{layers}, but should be at least 1")
    if layers is not None:
        config["num_hidden_layers"] = layers
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][-layers:]
    if width is not None:
        times = width / config["hidden_size"]
        config["hidden_size"] = width
        for key in ("intermediate_size", "num_attention_heads", "num_key_value_heads"):
            config[key] = max(1, round(times * config[key]))
    return config


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.shape", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--format", choices=FORMATS, default="bfloat16")
    parser.add_argument("--layers", type=int, metavar="N", help="instead of the shape's own")
    options = parser.parse_args(argv)
    return print_made(lambda: write_shape(
        resized(options.shape, layers=options.layers), options.folder, options.format
    ))  # fmt: skip


def print_made(make: Callable[[], Path]) -> int:
    """Make it and print what is given as MODEL; return 0, or 2 after a line that says why not."""
    try:
        print(make())
    except ImportError as error:
        print(f"this format needs a package that is not installed: {error.name}", file=sys.stderr)
        return 2
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
