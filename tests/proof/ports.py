"""Ports that are not our reference: transformers' torch models with bugs planted in them."""

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.parity.capture import torch as capture
from tests.proof import packed
from tests.proof.port import Port
from tests.proof.registry import STAGES, Bug, Subject, exists, in_order

GRANULARITIES = ("modules", "layers", "logits")
PACKING = ("quantization", "quantization_config")
ADAPTER = "base_model.model."  # what PEFT puts before every name


def subject(folder: Path, *, dtype: str = "float32", adapter: Path | None = None) -> Subject:
    """Say what a folder is, for asking which bugs exist in a port of it."""
    text = adapter and (adapter / "adapter_config.json").read_text(encoding="utf-8")
    keys = json.loads(text) if text else None
    return Subject(AutoConfig.from_pretrained(folder), dtype, packed.is_packed(folder), keys)


@torch.no_grad()
def load(
    folder: Path,
    bugs: Iterable[Bug] = (),
    *,
    dtype: str = "float32",
    attention: str = "eager",
    adapter: Path | None = None,
) -> Port:
    """Return transformers' model of a folder, of a dtype and an attention, with bugs planted.

    Raises: ValueError for a bug that does not exist in a port of this folder.
    """
    ordered, asked = in_order(bugs), subject(folder, dtype=dtype, adapter=adapter)
    for one in ordered:
        if not exists(one, asked):
            raise ValueError(f"{one.name} does not exist in {folder.name} of {dtype}")
    for one in of_stage(ordered, "config"):
        one.plant(asked.config, **one.settings)
    model = build_model(folder, asked, of_stage(ordered, "packed"), attention)
    outer = model if adapter is None else adapted(model, adapter, of_stage(ordered, "adapter"))
    port = Port(model, outer, folder)
    for stage in STAGES[STAGES.index("weights") :]:
        for one in of_stage(ordered, stage):
            one.plant(port, **one.settings)
    return port


def of_stage(bugs: Iterable[Bug], stage: str) -> list[Bug]:
    return [one for one in bugs if one.stage == stage]


def build_model(folder: Path, asked: Subject, bugs: list[Bug], attention: str) -> Any:
    options = {"dtype": getattr(torch, asked.dtype), "attn_implementation": attention}
    if not asked.packed:
        model = AutoModelForCausalLM.from_pretrained(folder, config=asked.config, **options)
        return model.eval()
    for key in PACKING:
        asked.config.__dict__.pop(key, None)
    model = AutoModelForCausalLM.from_config(asked.config, **options).eval()
    changes = [lambda codes, one=one: one.plant(codes, **one.settings) for one in bugs]
    rest = model.load_state_dict(packed.read(folder, changes), strict=False)
    if rest.unexpected_keys or set(rest.missing_keys) - {"lm_head.weight"}:
        raise ValueError(f"{folder}: {rest}")
    return model


def adapted(model: Any, adapter: Path, bugs: list[Bug]) -> Any:
    """Put an adapter on a model as a port with these bugs reads its file."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(adapter / "adapter_model.safetensors")
    for one in bugs:
        tensors = one.plant(config, tensors, **one.settings)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks transformers for what it calls otherwise now
        read = shutil.copytree(adapter, Path(name) / "read")
        (read / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(tensors, read / "adapter_model.safetensors")
        return PeftModel.from_pretrained(model, read, autocast_adapter_dtype=False).eval()


@torch.no_grad()
def dump(port: Port, tokens: np.ndarray, granularity: str = "modules") -> dict[str, np.ndarray]:
    """Run a prompt and return what a port dumps of it, by the names of its modules.

    `modules` is the output of every module, `layers` the embedding, each decoder layer, the final
    norm, the head and the logits, `logits` the logits alone.
    """
    forget_lengths(port)
    with capture(port.outer) as captured:
        port.outer(torch.tensor(tokens))
    taken = {name.removeprefix(ADAPTER): captured.read(name) for name in captured.shapes}
    if granularity == "modules":
        return taken
    kept = {"logits"} if granularity == "logits" else {"logits", *layer_names(port)}
    return {name: value for name, value in taken.items() if name in kept}


def layer_names(port: Port) -> list[str]:
    names = {module: name for name, module in port.model.named_modules()}
    owners = [port.embedding, *port.blocks, port.final_norm, port.model.lm_head]
    return [names[owner] for owner in owners]


def forget_lengths(port: Port) -> None:
    """Let a model forget the longest text that it has seen: dynamic rope remembers it."""
    rotary = getattr(port.base, "rotary_emb", None)
    if hasattr(rotary, "original_inv_freq"):
        rotary.max_seq_len_cached = rotary.original_max_seq_len
        rotary.inv_freq.copy_(rotary.original_inv_freq)
