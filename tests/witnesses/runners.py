"""The models under test, each behind the same few calls that return NumPy arrays in float64."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import fast, reference

# name: which package runs it, in which dtype, on which backend.
RUNNERS = {
    "reference": (reference, "float32", None),
    "float64": (reference, "float64", None),
    "mlx": (fast, "float32", "mlx"),
    "cpu": (fast, "float32", "cpu"),
}
ENGINES = ("reference", "mlx", "cpu")


class Runner:
    """One loaded model."""

    def __init__(self, name: str, folder: Path, dtype: str | None = None):
        package, own_dtype, backend = RUNNERS[name]
        chosen = {} if backend is None else {"backend": backend}
        self.name = name
        self.model = package.load(folder, dtype=dtype or own_dtype, **chosen)

    def host(self, value: Any) -> np.ndarray:
        """Return an array of any backend as it is, in NumPy."""
        backend = getattr(self.model, "backend", None)
        return value if backend is None else backend.host(value)

    def exact(self, tokens: Any, **kwargs: Any) -> np.ndarray:
        """Return the logits in the dtype that they were computed in."""
        return self.host(self.model.forward(np.asarray(tokens), **kwargs))

    def logits(self, tokens: Any, **kwargs: Any) -> np.ndarray:
        return self.exact(tokens, **kwargs).astype(np.float64)

    def chunked(self, tokens: np.ndarray, sizes: Iterable[int], **kwargs: Any) -> np.ndarray:
        """Run the tokens through a cache in chunks of these sizes; return all logits."""
        cache, start, found = self.model.make_cache(), 0, []
        for size in sizes:
            part = slice(start, start + size)
            found.append(self.logits(tokens[:, part], cache=cache, **kwargs))
            start += size
        assert start == tokens.shape[1]
        return np.concatenate(found, axis=1)

    def taps(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Return every activation that the model names."""
        found: dict[str, np.ndarray] = {}
        self.exact(tokens, trace=lambda name, value: found.update({name: self.host(value)}))
        return found

    def greedy(
        self, tokens: np.ndarray, count: int, lengths: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Continue each row with its best token: ids (B, count), their logits (B, count, V)."""
        cache, ids, seen = self.model.make_cache(), [], []
        row = self.logits(tokens, cache=cache, lengths=lengths, last_only=True)
        for _ in range(count):
            seen.append(row[:, -1])
            ids.append(row[:, -1].argmax(axis=-1))
            row = self.logits(ids[-1][:, None], cache=cache)
        return np.stack(ids, axis=1), np.stack(seen, axis=1)


def redeclared(source: Path, target: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a checkpoint, with another config."""
    shutil.copytree(source, target)
    path = target / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    edit(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    return target


def undeclared(config: dict[str, Any]) -> None:
    """Keep the default of the quantisation, drop what is said of single modules."""
    default = {key: config["quantization"][key] for key in ("bits", "group_size", "mode")}
    config["quantization"] = config["quantization_config"] = default


def silent(config: dict[str, Any]) -> None:
    """Say nothing of a quantisation."""
    del config["quantization"], config["quantization_config"]


def misdeclared(config: dict[str, Any]) -> None:
    """Declare another packing for every module than the one it has."""
    for value in [section := config["quantization"], *section.values()]:
        if isinstance(value, dict):
            value["bits"] = 8 if value["bits"] != 8 else 4
            value["group_size"] = 64 if value["group_size"] != 64 else 32
    config["quantization_config"] = section


EDITS = {edit.__name__: edit for edit in (undeclared, silent, misdeclared)}
