"""What transformers makes of a checkpoint, tap by tap: a right port that nobody here wrote."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy

ATTENTIONS = ("eager", "sdpa")
CONTAINERS = ("", "model", "model.layers")


def transformers_taps(
    path: Path, tokens: np.ndarray, positions: np.ndarray, *, dtype: str, attention: str
) -> dict[str, np.ndarray]:
    """Return the output of every module that computes, by its name. Needs torch, dense weights."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation=attention
    )
    taps: dict[str, np.ndarray] = {}
    for name, module in model.named_modules():
        if name not in CONTAINERS and not name.endswith(("rotary_emb", "self_attn", "mlp")):
            module.register_forward_hook(keeper(taps, name))
    with torch.no_grad():
        seen = torch.ones(tokens.shape, dtype=torch.long)
        model(torch.tensor(tokens), position_ids=torch.tensor(positions), attention_mask=seen)
    return taps


def keeper(taps: dict[str, np.ndarray], name: str) -> Any:
    """Return a hook that keeps a module's output under its name."""

    def keep(module: Any, inputs: Any, output: Any) -> None:
        taps[name] = to_numpy(output).copy()

    return keep
