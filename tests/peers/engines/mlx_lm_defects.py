"""What mlx-lm loses of right checkpoints without a word, and what Lockstep says of its captures.

`python -m tests.peers.engines.mlx_lm_defects FOLDER [NAME ...]` writes each checkpoint and the
capture of mlx-lm into FOLDER, and prints the table of docs/parity/mlx-lm.md. Needs the group
`peers`. Checkpoints are random and tiny, made and saved by transformers.
"""

import argparse
import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

from lockstep import parity, reference
from lockstep.parity.capture.captured import Captured
from tests.peers import test_gemma4_peers as gemma4_peers
from tests.peers import test_qwen3_moe_peers as moe_peers
from tests.witnesses import build, build_gemma4, build_gpt2, build_llama, build_qwen3_moe
from tests.witnesses.judge import error

VERSION = "0.32.2"  # the mlx-lm that all of this was seen in
SEED, LENGTH = 1, 40
WINDOW = ("mask-layer-types-ignored", "full everywhere")
# Its Qwen2 takes the heads for equal shares of the width.
EVEN = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
TINY_FLOATS = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # bits, numbers to a scale
# Every row of a matrix in whole groups, and a width whose root bfloat16 does not hold.
PACKABLE = {
    "hidden_size": 192, "intermediate_size": 64, "head_dim": 32, "global_head_dim": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A checkpoint, the model of transformers that is its truth, and a prompt."""

    folder: Path
    truth: Any
    tokens: np.ndarray


@dataclass(frozen=True)
class Defect:
    """What is lost: how the checkpoint is made, and which bugs that is, each with its variant."""

    make: Callable[[Path], Made]
    named: tuple[tuple[str, str | None], ...]
    layers: tuple[int, ...] = (0, 1)
    lost: str = field(kw_only=True)


def llama_like(
    family: str,
    scaling: str,
    spelling: str,
    *,
    drop: str | None = None,
    length: int = LENGTH,
    **more: Any,
) -> Callable[[Path], Made]:
    """A model of one of Llama's relatives. `spelling` says where its config keeps rope's keys."""

    def make(folder: Path) -> Made:
        sizes = {"theta": 1e6, "head_dim": 24, "tie_word_embeddings": False} | more
        keys = build_llama.config(family, scaling, **sizes)
        model = build_llama.random_model(SEED, keys)
        build_llama.save(model, folder, dtype="float32", spelling=spelling)
        if drop is not None:
            build.edit_config(folder, lambda config: config.pop(drop))
        tokens = build.prompts(SEED, keys["vocab_size"])[:1, :length]
        return Made(folder, build.truth(folder), tokens)

    return make


def qwen3_moe(more: dict[str, Any], scaling: dict[str, Any] | None = None) -> Callable[..., Made]:
    """A model with experts, its config spelled as published ones are."""

    def make(folder: Path) -> Made:
        def attempt(number: int) -> Path:
            model = build_qwen3_moe.random_model(number, **(build_qwen3_moe.SMALL | more))
            build_qwen3_moe.save(model, folder, dtype="float32")
            build.edit_config(folder, build_qwen3_moe.spell_as_before_5)
            build.edit_config(folder, lambda config: config.update(rope_scaling=scaling))
            return folder

        drawn, model = moe_peers.settled(SEED, attempt)
        return Made(folder, model, drawn.tokens[:1])

    return make


def tiny_floats(mode: str) -> Callable[[Path], Made]:
    """Gemma 4, its tied embedding packed too, by mlx-lm's own converter."""

    def make(folder: Path) -> Made:
        bits, size = TINY_FLOATS[mode]
        model = build_gemma4.random_model(SEED, **(gemma4_peers.KINDS["31B"] | PACKABLE))
        plain = build_gemma4.save(model, folder.with_suffix(".plain"), dtype="bfloat16")
        config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
        with contextlib.redirect_stdout(io.StringIO()):
            gemma4_peers.converted(plain, folder, bits=bits, group_size=size, mode=mode)
        tokens = build.prompts(SEED, config["vocab_size"])[:1]
        return Made(folder, gemma4_peers.unpacked(folder, config), tokens)

    return make


def gpt2(**more: Any) -> Callable[[Path], Made]:
    """GPT-2 without a prefix, which is how mlx-lm takes it, and keys that its reader lacks."""

    def make(folder: Path) -> Made:
        model = build_gpt2.random_model(SEED, **(build_gpt2.SMALL | more))
        build_gpt2.as_on_the_hub(build.save(model, folder, dtype="float32"))
        build.edit_config(folder, lambda config: config.update(more))
        tokens = build.prompts(SEED, build_gpt2.SMALL["vocab_size"])[:1]
        return Made(folder, build_gpt2.truth(folder), tokens)

    return make


DEFECTS = {
    "mistral-window": Defect(
        llama_like("mistral with a window", "default", "rope_type"),
        (WINDOW,),
        lost="Mistral: `sliding_window`",
    ),
    "mistral-of-transformers-5": Defect(
        llama_like("mistral with a window", "default", "rope_parameters"),
        (WINDOW, ("rope-theta-default", "base 10000")),
        lost="Mistral: `sliding_window`, and `rope_theta` in `rope_parameters`",
    ),
    "llama-theta": Defect(
        llama_like("llama", "default", "rope_parameters"),
        (("rope-theta-default", "base 10000"),),
        lost="Llama: `rope_theta` in `rope_parameters`",
    ),
    "llama-llama3": Defect(
        llama_like("llama", "llama3", "rope_parameters"),
        (("rope-llama3-scaling-missing", "not at all"), ("rope-theta-default", "base 10000")),
        lost="Llama: the base and the llama3 scaling in `rope_parameters`",
    ),
    "llama-linear": Defect(
        llama_like("llama", "linear", "rope_parameters"),
        (("rope-global-linear-scale-missing", None), ("rope-theta-default", "base 10000")),
        lost="Llama: the base and the linear scaling in `rope_parameters`",
    ),
    "qwen2-yarn": Defect(
        llama_like("qwen2", "yarn", "rope_parameters", **EVEN),
        (("rope-yarn-attn-factor", "never"), ("rope-yarn-scaling-missing", "not at all")),
        lost="Qwen2: YaRN in `rope_parameters`",
    ),
    "qwen2-theta": Defect(
        llama_like("qwen2", "default", "rope_parameters", **(EVEN | {"theta": 1e4})),
        (("rope-theta-default", "base 1000000"),),
        lost="Qwen2: `rope_theta` in `rope_parameters`, if it is not a million",
    ),
    "qwen2-window": Defect(
        llama_like("qwen2 with a window", "default", "rope_type", **EVEN),
        (WINDOW,),
        (1,),
        lost="Qwen2: `sliding_window` of the layers that slide",
    ),
    "qwen3-window": Defect(
        llama_like(
            *("qwen3", "default", "rope_parameters"),
            **{"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        ),
        (WINDOW,),
        (1,),
        lost="Qwen3: `sliding_window` of the layers that slide",
    ),
    "qwen3-moe-yarn": Defect(
        qwen3_moe(moe_peers.KINDS["yarn"], moe_peers.YARN),
        (("rope-yarn-attn-factor", "never"), ("rope-yarn-scaling-missing", "not at all")),
        (0, 1, 2),
        lost="Qwen3-MoE: `rope_scaling`",
    ),
    "qwen3-moe-window": Defect(
        qwen3_moe(moe_peers.KINDS["sliding"]),
        (WINDOW,),
        (0, 1, 2),
        lost="Qwen3-MoE: `sliding_window`",
    ),
    **{
        f"gemma4-{mode}": Defect(
            tiny_floats(mode),
            (("embed-scale-not-rounded", "all of it in bfloat16"),),
            (),
            lost=f"Gemma 4 in {mode}: float32 where the embedding is scaled",
        )
        for mode in TINY_FLOATS
    },
    "llama-head": Defect(
        llama_like("llama", "default", "rope_type", drop="tie_word_embeddings"),
        (("tied-head-mishandled", "the embedding"),),
        (),
        lost="Llama: `lm_head.weight`, if the config does not mention `tie_word_embeddings`",
    ),
    "yarn-truncate": Defect(
        llama_like("llama", "yarn, every key", "rope_type"),
        (("rope-yarn-scaling-missing", "bounds rounded, or not"),),
        lost="YaRN: `truncate: false`",
    ),
    "yarn-mscale": Defect(
        llama_like("llama", "yarn, mscale alone", "rope_type"),
        (("rope-yarn-attn-factor", "mscale counts alone"),),
        lost="YaRN: that `mscale` counts only beside `mscale_all_dim`",
    ),
    "yarn-attention-factor": Defect(
        llama_like("llama", "yarn, attention factor", "rope_type"),
        (("rope-yarn-attn-factor", "always 0.1 ln(s) + 1"),),
        lost="YaRN: `attention_factor`",
    ),
    "longrope-factor": Defect(
        llama_like("llama", "longrope, factor", "rope_type"),
        (("rope-longrope-mscale", "by both lengths"),),
        lost="LongRoPE: `factor`",
    ),
    "longrope-short": Defect(
        llama_like("llama", "longrope", "rope_type", length=build_llama.ORIGINAL),
        (("rope-longrope-always-long", "always long"),),
        lost="LongRoPE: `short_factor`",
    ),
    "gpt2-gelu": Defect(
        gpt2(activation_function="gelu"),
        (("gelu-erf-vs-tanh", "tanh for erf"),),
        lost='GPT-2: `activation_function: "gelu"`',
    ),
    "gpt2-unscaled": Defect(
        gpt2(scale_attn_weights=False),
        (("attn-scale-should-be-one", "1 / sqrt(head_dim)"),),
        lost="GPT-2: `scale_attn_weights: false`",
    ),
    "gpt2-by-layer": Defect(
        gpt2(scale_attn_by_inverse_layer_idx=True, n_layer=3),
        (("attn-scale-missing", "not divided by the layer's number"),),
        (1, 2),
        lost="GPT-2: `scale_attn_by_inverse_layer_idx`",
    ),
}


def captured(made: Made) -> Captured:
    """Return what mlx-lm computes of a checkpoint in float32."""
    model, _ = load_model(made.folder)
    model.set_dtype(mx.float32)
    with parity.capture.mlx(model) as dump:
        model(mx.array(made.tokens))
    return dump


def off_by(made: Made, logits: np.ndarray) -> float:
    """Return how far logits are from transformers', in standard deviations of those."""
    expected = build.logits(made.truth, made.tokens)
    return error(np.asarray(logits, np.float32).reshape(expected.shape), expected)


def row(name: str, found: Any, off: float) -> str:
    said = "; ".join(
        f"`{bug.id}`" + (f" ({bug.variant})" if bug.variant else "")
        for bug in sorted(found.faults, key=lambda bug: bug.id)
    )
    return f"| `{name}` | {DEFECTS[name].lost} | {off:.1g} | {said or found.verdict} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DEFECTS)}")
    arguments = parser.parse_args()
    build.settle()
    for name in arguments.names or DEFECTS:
        made = DEFECTS[name].make(arguments.folder / name)
        dump = captured(made)
        dump.save(arguments.folder / f"{name}.safetensors")
        found = parity.explain(reference.load(made.folder), dump)
        print(row(name, found, off_by(made, dump.read("logits"))), flush=True)


if __name__ == "__main__":
    main()
