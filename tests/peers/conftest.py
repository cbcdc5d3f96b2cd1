"""Fresh checkpoints from a seed that is drawn anew for every run, and the bars for comparing."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sampled import SEED
from tests.witnesses import build
from tests.witnesses.judge import (
    judge,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.witnesses.runners import ENGINES

__all__ = ["judge", "pytest_sessionfinish", "pytest_terminal_summary", "pytest_testnodedown"]

STORAGES = ("float32", "float16", "bfloat16")
TIES = (True, False)


@dataclass(frozen=True)
class Drawn:
    """A fresh checkpoint, with two prompts for it."""

    folder: Path
    tokens: np.ndarray


@pytest.fixture(scope="session")
def run_seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, in each of its processes: LOCKSTEP_SEED, else a new one."""
    build.settle()
    return pytestconfig.stash[SEED]


@pytest.fixture(autouse=True)
def show_seed(run_seed: int) -> None:
    """Print the seed where pytest shows it with a failure."""
    print(f"to repeat this: LOCKSTEP_SEED={run_seed}")


@pytest.fixture(scope="session")
def seed_for(run_seed: int) -> Callable[..., int]:
    """Return a seed for one case that depends on this run's seed and on the case alone."""
    return lambda *case: zlib.crc32(repr((run_seed, *case)).encode())


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=TIES, ids=["tied", "untied"])
def tied(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> str:
    return request.param


def draw_config(seed: int) -> dict[str, Any]:
    """Draw the sizes of a small model; query heads times head_dim is rarely its width."""
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(2, 4))
    return build.SMALL | {
        "vocab_size": int(rng.integers(80, 400)),
        "hidden_size": 8 * int(rng.integers(5, 13)),
        "intermediate_size": 8 * int(rng.integers(8, 25)),
        "num_hidden_layers": int(rng.integers(2, 4)),
        "num_attention_heads": groups * int(rng.integers(2, 4)),
        "num_key_value_heads": groups,
        "head_dim": 2 * int(rng.integers(6, 17)),
        "rms_norm_eps": float(rng.choice([1e-6, 1e-5, 1e-3])),
        "rope_theta": float(rng.choice([1e4, 1e6])),
    }


def draw_wide(seed: int) -> dict[str, Any]:
    """Draw the sizes of a model whose every matrix can be packed in every way."""
    rng = np.random.default_rng(seed)
    heads, width = [(8, 32), (4, 64), (16, 16), (12, 32)][rng.integers(4)]
    return build.WIDE | {
        "vocab_size": int(rng.integers(80, 300)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads < 12 else heads // 4,
        "head_dim": width,
        "intermediate_size": int(rng.choice([128, 256])),
    }
