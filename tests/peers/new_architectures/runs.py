"""What the tests on new architectures share: dumps of ports, and what is found in them."""

import json
from pathlib import Path
from typing import Any

import torch

from lockstep import parity
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.result import Result
from tests.peers.new_architectures.builds import TOKENS


def captured(model: Any) -> Dump:
    with parity.capture.torch(model) as dump, torch.no_grad():
        model(torch.tensor([TOKENS]))
    return dump


def only(dump: Dump, keep: Any) -> Dump:
    """Return a dump of some taps alone."""
    shapes = {name: shape for name, shape in dump.shapes.items() if keep(name)}
    return Dump(dump.path, shapes, dump.read, dump.about)


def wrong(result: Result) -> list[str]:
    return [tap.name for tap in result.taps if tap.status == "diverged"]


def published(path: Path, target: Path) -> Path:
    """Spell a config as files on the hub do, where mlx-lm looks for it; return the folder."""
    said = json.loads((path / "config.json").read_text())
    rope = said["rope_parameters"]
    theta = rope.get("full_attention", rope)["rope_theta"]
    share = rope.get("partial_rotary_factor", 1.0)
    keys = {"rope_theta": theta, "partial_rotary_factor": share, "sliding_window_pattern": 2}
    (target / "config.json").write_text(json.dumps(said | keys))
    (target / "model.safetensors").symlink_to(path / "model.safetensors")
    return target
