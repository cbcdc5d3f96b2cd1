"""Unpacking MLX's affine weights by hand, step by step, so that each step can be got wrong."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

Change = Callable[["Codes"], "Codes"]


@dataclass(frozen=True)
class Codes:
    """One packed matrix: codes (rows, columns) as floats, scales and biases (rows, groups)."""

    codes: np.ndarray
    scales: np.ndarray
    biases: np.ndarray
    bits: int
    group_size: int

    def but(self, **changes: Any) -> "Codes":
        return replace(self, **changes)

    def weights(self) -> np.ndarray:
        """Return code * scale + bias, each group with its own."""
        scales, biases = (np.repeat(x, self.group_size, axis=1) for x in (self.scales, self.biases))
        return self.codes * scales + biases


def unpacked(words: np.ndarray, scales: np.ndarray, biases: np.ndarray) -> Codes:
    """Cut 4-bit codes out of 32-bit words, the lowest bits first."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    codes = (words[..., None] >> shifts) & np.uint32(15)
    codes = codes.reshape(len(words), -1).astype(np.float32)
    return Codes(codes, scales, biases, 4, codes.shape[1] // scales.shape[1])


def read(folder: Path, changes: Iterable[Change]) -> dict[str, torch.Tensor]:
    """Return the weights of a packed folder in float32 as a loader with these bugs reads them."""
    stored, changes = load_file(folder / "model.safetensors"), list(changes)
    found: dict[str, torch.Tensor] = {}
    for name, value in stored.items():
        module = name.removesuffix(".weight")
        if f"{module}.scales" not in stored:
            if not name.endswith((".scales", ".biases")):
                found[name] = value.float()
            continue
        if name.endswith(".weight"):
            scales, biases = (stored[f"{module}.{x}"].float().numpy() for x in ("scales", "biases"))
            codes = unpacked(value.numpy().view(np.uint32), scales, biases)
            for change in changes:
                codes = change(codes)
            found[name] = torch.from_numpy(codes.weights())
    return found


def is_packed(folder: Path) -> bool:
    return "quantization" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
