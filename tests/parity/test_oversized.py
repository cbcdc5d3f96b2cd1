"""The oracle of a model that does not fit, on one that does. By a second computation in float64."""

import json

import numpy as np
import pytest

from lockstep.parity.oversized import __main__ as command
from lockstep.parity.oversized.checkpoint import LARGE, size, write_checkpoint
from lockstep.parity.oversized.truth import last_logits
from lockstep.reference.model import load

SMALL = LARGE | {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 300,
}
TOKENS = [5, 299, 0, 17, 17, 120]


@pytest.fixture
def folder(tmp_path):
    written = []
    write_checkpoint(tmp_path / "model", SMALL, written.append)
    assert len(written) == 3 + 3  # a file a layer; the embedding, the last norm, the head
    return tmp_path / "model"


def test_both_computations_agree(folder):
    found = command.measured(folder, TOKENS)
    assert found["worst error of any logit"] < 2e-5
    assert found["peak memory"] > found["largest block"]
    assert found["its logit"] == pytest.approx(found["computed otherwise"], abs=1e-4)


@pytest.mark.parametrize(("over", "within"), [(0, True), (1, False)])
def test_memory_has_a_limit(folder, over, within, monkeypatch):
    """By hand: the tests before this one took memory too, so what is measured is given."""
    limit = command.measured(folder, TOKENS)["limit"]
    monkeypatch.setattr(command, "peak_memory", lambda: limit + over)
    assert command.measured(folder, TOKENS)["within"] is within


def test_what_is_written(folder):
    """By law: sizes as announced; noise that is no constant; every logit of usual size."""
    checkpoint = load(folder).checkpoint
    assert checkpoint.warnings == []
    assert size(SMALL) == sum(checkpoint.stored(name).nbytes for name in checkpoint.names)
    gains = checkpoint.tensor("model.layers.1.self_attn.q_norm.weight").astype(np.float32)
    assert gains.std() > 0.05 and abs(gains.mean() - 1) < 0.1
    logits = last_logits(folder, TOKENS)
    assert np.isfinite(logits).all() and 0.3 < logits.std() < 3


def test_a_wrong_weight_is_seen(folder):
    """By law: the second computation is none that agrees with everything."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps(config | {"rope_theta": 100.0}), encoding="utf-8"
    )
    logits = load(folder).forward([TOKENS], last_only=True)[0, -1]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert np.abs(logits - last_logits(folder, TOKENS)).max() > 1e-2 * logits.std()


def test_the_large_one_is_an_8b():
    """By hand: 8.19 billion weights in 4.5 bits each."""
    assert size(LARGE) == pytest.approx(8.19e9 * 4.5 / 8, rel=1e-2)


def test_a_folder_that_is_there_is_left_alone(tmp_path, capsys):
    assert command.main(["--out", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
