"""The committed witnesses as fixtures."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.witnesses.judge import judge, pytest_terminal_summary
from tests.witnesses.runners import ENGINES, Runner

__all__ = ["judge", "pytest_terminal_summary"]

MODELS = Path(__file__).parent / "models"
NAMES = sorted(path.name for path in MODELS.iterdir())
TAP = "tap:"


class Witness(NamedTuple):
    """A checkpoint, and what transformers computes from it."""

    name: str
    folder: Path
    expected: Mapping[str, np.ndarray]


def witness_named(name: str) -> Witness:
    folder = MODELS / name
    with np.load(folder / "expected.npz") as expected:
        return Witness(name, folder, dict(expected))


def is_tapped(name: str) -> bool:
    """Tell whether a witness keeps what every module gives; those of a single packing do not."""
    with np.load(MODELS / name / "expected.npz") as expected:
        return any(key.startswith(TAP) for key in expected.files)


TAPPED = [name for name in NAMES if is_tapped(name)]


@pytest.fixture(scope="session", params=NAMES)
def witness(request: pytest.FixtureRequest) -> Witness:
    return witness_named(request.param)


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def runner(witness: Witness, engine: str) -> Runner:
    return Runner(engine, witness.folder)


@pytest.fixture(scope="session")
def tied() -> Witness:
    """The witness that also has positions with gaps and logits in half precision."""
    return witness_named("tied_bfloat16")


@pytest.fixture(scope="session")
def mixed() -> Witness:
    """The witness whose modules are packed in every way there is."""
    return witness_named("affine_mixed")
