"""Measure what `explain` takes for a model of real size: seconds, processor time and memory.

    python -m lockstep.parity.explaining.cost FOLDER

It writes a random checkpoint of the shape of Qwen3-0.6B into FOLDER (1.2 GB), one of a port with
two bugs (as large), and what our CPU backend computes of 64 tokens by either, all module outputs
in float32 (0.25 GB each). What is there already is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from lockstep.parity.noise.cost import CONFIG
from lockstep.parity.noise.random_checkpoint import weight_shapes
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.precision import dtype_named

REAL = CONFIG | {
    "num_hidden_layers": 28,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
TOKENS = [1 + 2357 * place % 151000 for place in range(64)]
MODULES = "model.embed_tokens,*_proj,*norm,*.act_fn,logits"  # and the layers
EXCHANGED = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
RIGHT, PORT = "model", "port"
FILES = {"no bug": RIGHT, "two bugs": PORT}
NUMPY = {"BF16": dtype_named("bfloat16"), "F16": np.dtype("f2"), "F32": np.dtype("f4")}
JUDGED = (0, 1)  # exit codes of `explain`: no bug, and some
TILE = 1 << 24  # numbers that are drawn at a time


@dataclass(frozen=True)
class Cost:
    """One call of `explain`, as the operating system counts it, and what it said."""

    seconds: float
    processor: float
    megabytes: float
    names: list[str]


def write(
    folder: Path, config: Mapping[str, Any], *, wrong: bool = False, stored: str = "BF16"
) -> None:
    """Write a checkpoint; a wrong one has another base, and gate and up exchanged.

    Its numbers are those of bfloat16, in whatever type they are `stored`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {**config, "rope_theta": 1e4} if wrong else {**config}
    shapes, plan = weight_shapes(config), {}
    for name, shape in shapes.items():
        module = name.split(".")[-2]
        source = name.replace(module, EXCHANGED.get(module, module)) if wrong else name
        plan[name] = Planned(stored, shape, partial(drawn, source, shape, stored))
    write_safetensors(
        folder / "model.safetensors", plan, metadata={"format": "pt"}, done=lambda name: None
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def drawn(name: str, shape: tuple[int, ...], stored: str = "BF16") -> np.ndarray:
    """Draw a tensor by its name: gains around 1, matrices that keep the size of what they take."""
    rng, size = np.random.default_rng(crc32(name.encode())), int(np.prod(shape))
    centre, width = (1.0, 0.3) if len(shape) == 1 else (0.0, shape[-1] ** -0.5)
    found = np.empty(size, dtype_named("bfloat16"))
    for start in range(0, size, TILE):
        part = found[start : start + TILE]
        part[:] = centre + width * rng.standard_normal(len(part), np.float32)
    return found.reshape(shape).astype(NUMPY[stored], copy=False)


def lockstep(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "lockstep.parity.cli", *map(str, words)]


def prepare(folder: Path, config: Mapping[str, Any], tokens: list[int]) -> None:
    """Write the checkpoints and their dumps, if they are not there."""
    said = ",".join(map(str, tokens))
    layers = [f"model.layers.{number}" for number in range(config["num_hidden_layers"])]
    for part in (RIGHT, PORT):
        model, dump = folder / part, folder / f"{part}.dump.safetensors"
        if not (model / "config.json").exists():
            write(model, config, wrong=part == PORT)
        if not dump.exists():
            trace = lockstep("trace", model, "--tokens", said, "--backend", "cpu")
            subprocess.run(
                [*trace, "--taps", ",".join([MODULES, *layers]), "-o", str(dump)], check=True
            )


def measured(folder: Path, part: str) -> Cost:
    """Run `explain` on a dump, in a process of its own.

    That process counts as its memory no less than this one has taken so far, which is less.
    Raises: CalledProcessError if it judges nothing.
    """
    result = folder / f"{part}.json"
    result.unlink(missing_ok=True)  # that of another run would be taken for this one's
    dump = folder / f"{part}.dump.safetensors"
    began = time.perf_counter()
    explain = lockstep("explain", folder / RIGHT, dump, "--json", result)
    child = subprocess.Popen(explain, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in JUDGED:
        raise subprocess.CalledProcessError(child.returncode, explain)
    found = json.loads(result.read_text(encoding="utf-8"))
    return Cost(
        seconds=seconds,
        processor=used.ru_utime + used.ru_stime,
        megabytes=used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10),
        names=[one["id"] for one in found["faults"]],
    )


def costs(folder: Path, config: Mapping[str, Any], tokens: list[int]) -> dict[str, Cost]:
    """Return what the dump without a bug costs, and that with two."""
    prepare(folder, config, tokens)
    return {said: measured(folder, part) for said, part in FILES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="cost", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where 3 GB can be kept")
    for said, cost in costs(parser.parse_args().folder, REAL, TOKENS).items():
        named = ", ".join(cost.names) or "nothing named"
        print(
            f"{said}: {cost.seconds:.0f} s, {cost.processor:.0f} s of a processor, "
            f"{cost.megabytes / 1000:.1f} GB; {named}"
        )


if __name__ == "__main__":
    main()
