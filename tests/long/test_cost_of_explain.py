"""The script that measures `explain` plants what it says, and counts another process.

By hand: the two bugs and where they are; by law: nothing is named of a right port.
"""

from subprocess import CalledProcessError

import numpy as np
import pytest

from lockstep.parity.explaining.cost import (
    PORT,
    REAL,
    RIGHT,
    costs,
    drawn,
    measured,
    prepare,
)
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

TINY = REAL | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
}
TOKENS = [7 * place % 300 for place in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cost")


@pytest.fixture(scope="module")
def found(folder):
    return costs(folder, TINY, TOKENS)


def test_what_is_named_is_what_was_planted(found):
    assert found["no bug"].names == []
    assert sorted(found["two bugs"].names) == ["rope-theta-default", "swiglu-gate-up-swapped"]


def test_figures_are_those_of_a_process_that_computed(found):
    for cost in found.values():
        assert cost.processor > 0.1 and cost.seconds > 0.1 and cost.megabytes > 20


@pytest.mark.parametrize("result", [None, '{"faults": []}'])
def test_a_run_that_judges_nothing_has_no_figures(tmp_path, result):
    """By hand: a dump that is none, and perhaps what another run left."""
    (tmp_path / f"{PORT}.dump.safetensors").write_bytes(b"nothing")
    if result is not None:
        (tmp_path / f"{PORT}.json").write_text(result)
    with pytest.raises(CalledProcessError, match="exit status 2"):
        measured(tmp_path, PORT)


def test_what_is_there_is_not_made_again(folder, found):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    prepare(folder, TINY, TOKENS)
    assert len(before) == 4
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}


def test_the_port_has_gate_and_up_exchanged_and_all_else_as_it_is(folder, found):
    right, port = (open_checkpoint(folder / part) for part in (RIGHT, PORT))
    assert (right.config.rope_theta, port.config.rope_theta) == (1e6, 1e4)
    for name in right.names:
        other = name
        if "gate_proj" in name:
            other = name.replace("gate", "up")
        if "up_proj" in name:
            other = name.replace("up", "gate")
        assert np.array_equal(right.tensor(name), port.tensor(other)), name
        assert ("mlp.gate" in name) <= (not np.array_equal(right.tensor(name), port.tensor(name)))


def test_numbers_depend_on_the_name_alone_and_have_the_size_that_is_said():
    one = drawn("model.layers.0.mlp.up_proj.weight", (3000, 1024)).astype(np.float64)
    assert one.std() == pytest.approx(1 / 32, rel=0.01) and abs(one.mean()) < 1e-3
    again = drawn("model.layers.0.mlp.up_proj.weight", (3000, 1024))
    assert np.array_equal(one, again.astype(np.float64))
    assert drawn("model.norm.weight", (4096,)).astype(np.float64).mean() == pytest.approx(
        1, abs=0.03
    )
