"""Both builds of WeDLM, as what they are: Qwen3 and Qwen2. By witness, whose config says WeDLM."""

import shutil
from pathlib import Path

import pytest

from tests.witnesses import whole_models
from tests.witnesses.runners import ENGINES, Runner, redeclared

HERE = Path(__file__).parent
BUILDS = {"8B": HERE / "models" / "tied_bfloat16", "7B": HERE / "llama" / "qwen2_yarn"}
MODELS = {"8B": "qwen3", "7B": "llama"}


def renamed(build: str, target: Path) -> Path:
    """Copy a witness, with the keys of WeDLM in its config."""
    keys = {
        "model_type": "wedlm",
        "architectures": ["WeDLMForCausalLM"],
        "attention_bias": build == "7B",
        "qk_norm": build == "8B",
        "mask_token_id": None,
    }
    folder = redeclared(BUILDS[build], target, lambda config: config.update(keys))
    shutil.copyfile(BUILDS[build] / "expected.npz", folder / "expected.npz")
    return folder


@pytest.fixture(params=BUILDS)
def folder(request, tmp_path) -> Path:
    return renamed(request.param, tmp_path / "wedlm" / request.param)


@pytest.mark.parametrize("engine", ["float64", *ENGINES])
def test_logits(folder, engine, judge):
    checkpoint = Runner(engine, folder).model.checkpoint
    assert (checkpoint.architecture, checkpoint.model) == ("wedlm", MODELS[folder.name])
    whole_models.check_logits(folder, engine, judge)


@pytest.mark.parametrize("engine", ENGINES)
def test_cached_unequal_and_greedy(folder, engine, judge):
    whole_models.check_cached(folder, engine, judge)
    whole_models.check_unequal(folder, engine, judge)
    whole_models.check_greedy(folder, engine)
