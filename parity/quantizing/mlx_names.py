"""The names that mlx-lm's models give to tensors, where they are not those of the hub."""

from lockstep.reference.checkpoint.checkpoint import Checkpoint

# Stacks of experts, by the file in reference/models that runs the model.
STACKS = {"qwen3_moe": (".mlp.experts.", ".mlp.switch_mlp."),
          "gemma4": (".experts.", ".experts.switch_glu.")}  # fmt: skip
# What a whole model's names begin with, by model_type.
PREFIXES = {"gpt2": ("transformer.", "model."), "gemma4": ("model.", "language_model.model.")}
WRAPPED_HEAD = "language_model.lm_head"


def mlx_name(checkpoint: Checkpoint, name: str) -> str:
    """Return the name of a tensor, or of a module, in a folder that mlx-lm has converted."""
    hub, stacked = STACKS.get(checkpoint.model, ("", ""))
    if hub and hub in name:
        name = name.replace(hub, stacked, 1)
    first, theirs = PREFIXES.get(checkpoint.architecture, ("", ""))
    if checkpoint.architecture == "gemma4" and name.startswith("lm_head"):
        return name.replace("lm_head", WRAPPED_HEAD, 1)
    return theirs + name.removeprefix(first) if first and name.startswith(first) else name
