"""Which folders have no copy in GGUF. The copies themselves are in tests/peers."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.parity.bench import gguf_copy
from lockstep.parity.bench.gguf_copy import Inexact, as_gguf
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

WITNESSES = Path(__file__).parents[2] / "witnesses"


def copied(path):
    with as_gguf(path, ignore_config=()) as (copy, said):
        assert said == "as stored"
        return copy


def edited(source, target, **keys):
    shutil.copytree(source, target)
    path = target / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | keys), encoding="utf-8")
    return target


def test_a_gguf_file_is_given_as_it_is():
    path = WITNESSES / "gguf/qwen3_tied.gguf"
    assert copied(path) == path
    assert path.exists()


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("models/sliding_bfloat16", "no sliding window"),
        ("llama/mistral_window", "no sliding window"),
        ("llama/llama_dynamic", "its rope scaling, dynamic"),
        ("llama/llama_longrope", "its rope scaling, longrope"),
        ("gpt2/variant", "GELU's tanh form"),
        ("qwen3_moe/separate", "no dense layers among sparse ones"),
        ("gemma4/dense", "gemma4.* is not converted"),
    ],
)
def test_what_a_file_cannot_say(folder, why):
    with pytest.raises(Inexact, match=why):
        copied(WITNESSES / folder)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    "setting",
    [{"beta_fast": 16.0}, {"beta_slow": 2.0}, {"truncate": False}, {"attention_factor": 1.0}],
    ids=str,
)
def test_yarn_of_other_settings(setting, plain, tmp_path):
    ropes = {"rope_theta": None, "rope_scaling": None, "rope_parameters": YARN | setting}
    with pytest.raises(Inexact, match="its rope scaling, yarn"):
        copied(edited(plain, tmp_path / "model", **ropes))


@pytest.mark.parametrize(
    ("folder", "key", "value", "why"),
    [
        ("qwen3_moe/separate", "norm_topk_prob", False, "always norms"),
        ("gpt2/original", "activation_function", "gelu", "GELU's tanh form"),
        ("gpt2/original", "scale_attn_weights", False, "one scale"),
        ("gpt2/original", "scale_attn_by_inverse_layer_idx", True, "one scale"),
    ],
)
def test_what_llama_cpp_does_in_one_way(folder, key, value, why, tmp_path):
    with pytest.raises(Inexact, match=why):
        copied(edited(WITNESSES / folder, tmp_path / "model", **{key: value}))


def test_llama3_of_another_architecture(plain, tmp_path):
    llama3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
    llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    ropes = {"rope_theta": None, "rope_scaling": None, "rope_parameters": llama3}
    with pytest.raises(Inexact, match="of Llama alone"):
        copied(edited(plain, tmp_path / "model", **ropes))


def test_a_disk_that_is_full(plain, monkeypatch):
    """By law: what is stored in float32 takes as much again."""
    checkpoint = open_checkpoint(plain)
    size = sum(checkpoint.stored(name).nbytes for name in checkpoint.names)
    full = SimpleNamespace(free=size - 1)
    monkeypatch.setattr(gguf_copy.shutil, "disk_usage", lambda path: full)
    with pytest.raises(OSError, match=f"its copy takes {size} bytes, and {size - 1} are free"):
        copied(plain)
