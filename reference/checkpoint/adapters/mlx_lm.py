"""Adapters as mlx-lm trains them: `adapters.safetensors` and `adapter_config.json`.

The scale: `lora_parameters.scale` multiplies as it stands. It is not alpha, and it is never divided
by the rank: rank 8 and scale 20 add 20 * B A, not 2.5 * B A.

Both matrices are stored for a product from the right, `x @ lora_a @ lora_b`: (inputs, rank) and
(rank, outputs). They are turned here. Experts have (experts, rank, inputs) and (experts, outputs,
rank), the other way round, with the same factor. What an embedding adds is `lora_a[id] @ lora_b`:
lora_a has a row for each token, and is our b. A tied head multiplies by the table that was changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from lockstep.reference.checkpoint.adapters.homes import Form
from lockstep.reference.checkpoint.adapters.placing import Layout, Part, Rules
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import check_leftovers
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

LIMITS = JsonLimits(size=1 << 20, entries=10_000, depth=16)
RANK_LIMIT, SCALE_LIMIT = 1 << 16, 1e6
TENSOR = re.compile(r"(.+)\.(lora_a|lora_b|m)")
TIES = True  # a tied head takes part in what the embedding has learned
PARTS: dict[str, Part] = {"lora_a": "a", "lora_b": "b", "m": "magnitude"}
LAYOUTS: dict[Form, Layout] = {
    "projection": Layout(lambda r, s: ((s[1], r), (r, s[0])), lambda a, b, home: (a.T, b.T)),
    "table": Layout(lambda r, s: ((s[0], r), (r, s[1])), lambda a, b, home: (b, a)),
    "experts": Layout(lambda r, s: ((s[0], r, s[2]), (*s[:2], r)), lambda a, b, home: (a, b)),
}
# The file is a dump of every argument of the training. These change nothing of what was trained.
# Which layers it was is read off the tensors.
TRAINING = (
    "model", "train", "optimizer", "optimizer_config", "data", "seed", "num_layers", "batch_size",
    "iters", "val_batches", "learning_rate", "steps_per_report", "steps_per_eval",
    "resume_adapter_file", "adapter_path", "save_every", "test", "test_batches", "max_seq_length",
    "config", "grad_checkpoint", "grad_accumulation_steps", "clear_cache_threshold", "lr_schedule",
    "mask_prompt", "report_to", "project_name", "wandb", "hf_dataset", "trust_remote_code",
    "prompt_feature", "completion_feature", "chat_feature", "use_chat_template",
)  # fmt: skip


def read_rules(path: Path, ignore: Collection[str], warnings: list[str]) -> Rules:
    """Read adapter_config.json. Raises InputError naming the first key that is wrong or unknown."""
    fields = Fields(read_json_object(path, subject="adapter config", limits=LIMITS), path)
    kind = "lora" if fields.get("fine_tune_type") is None else fields.raw["fine_tune_type"]
    if kind not in ("lora", "dora"):
        fields.refuse("fine_tune_type", "must be 'lora' or 'dora': whole weights are a checkpoint")
    raw = fields.get("lora_parameters")
    if not isinstance(raw, dict):
        fields.refuse("lora_parameters", "must be an object with rank and scale")
    inner = Fields(raw, path, "lora_parameters.")
    rank = inner.integer("rank", low=1, high=RANK_LIMIT)
    scale = inner.number("scale", low=1 / SCALE_LIMIT, high=SCALE_LIMIT)
    check_leftovers(inner, ignore, warnings, {"dropout", "keys"})
    check_leftovers(fields, ignore, warnings, TRAINING)
    return Rules(lambda module: rank, lambda module: scale, kind == "dora", LAYOUTS)


def part_of(name: str) -> tuple[str, Part] | None:
    """Take a tensor's name apart: `model.layers.0.self_attn.q_proj.lora_a`."""
    found = TENSOR.fullmatch(name)
    return None if found is None else (found[1], PARTS[found[2]])
