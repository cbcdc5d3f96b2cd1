"""What a capture keeps, without any framework: by hand. The hooks are tested beside torch."""

import json

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.capture.captured import Collection
from lockstep.parity.dumps.dump import open_dump
from lockstep.reference.checkpoint.errors import InputError


def collected(**tensors: np.ndarray) -> Collection:
    kept = Collection("Tiny", "torch")
    for name, value in tensors.items():
        kept.add(name.replace("__", "."), value)
    return kept


def numbers(seed: int, kind: object = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 4)).astype(kind)


def test_it_is_a_dump_that_says_what_it_cost():
    kept = collected(model__norm=numbers(0), logits=numbers(1))
    kept.fed([[1, 2, 3]])
    kept.finish()
    dump = kept.dump
    assert dump.is_trace and dump.tokens == [1, 2, 3] and dump.decoded == []
    assert dump.shapes == {"model.norm": (1, 3, 4), "logits": (1, 3, 4)}
    assert dump.nbytes == 2 * 48 and dump.cost.calls == 2 and dump.about["dtype"] == "float32"
    assert json.loads(json.dumps(dump.to_json()))["tensors"] == 2


def test_it_is_saved_as_a_trace(tmp_path):
    values = {"logits": numbers(0, ml_dtypes.bfloat16), "model.norm": numbers(1)}
    kept = collected(logits=values["logits"], model__norm=values["model.norm"])
    kept.fed([[5, 6], [7], [8]])
    kept.finish()
    kept.dump.save(tmp_path / "port.safetensors")
    back = open_dump(tmp_path / "port.safetensors")
    assert (back.tokens, back.decoded) == ([5, 6], [7, 8])
    assert back.about["model"] == "Tiny" and back.about["backend"] == "torch"
    for name, value in values.items():
        assert back.read(name).dtype == value.dtype
        assert back.read(name).tobytes() == value.tobytes()


def test_a_prompt_that_nobody_saw_is_not_said(tmp_path):
    kept = collected(logits=numbers(0))
    kept.fed([None])
    kept.finish()
    kept.dump.save(tmp_path / "port.safetensors")
    assert kept.dump.tokens is None
    assert open_dump(tmp_path / "port.safetensors").tokens is None


def test_calls_of_one_module_are_kept_apart():
    kept = collected(logits=numbers(0))
    for seed in (1, 2, 3):
        kept.add("model.layers.0", numbers(seed))
    kept.finish()
    assert [*kept.dump.shapes] == ["logits", *(f"model.layers.0@{n}" for n in (1, 2, 3))]
    for seed in (1, 2, 3):
        np.testing.assert_array_equal(kept.dump.read(f"model.layers.0@{seed}"), numbers(seed))
    assert "model.layers.0 3 times" in kept.dump.notes[0]


def test_layers_that_are_all_the_same_are_refused():
    layers = {f"model__layers__{n}": numbers(0) for n in range(3)}
    with pytest.raises(InputError, match="all 3 layers handed out the same values"):
        collected(**layers).finish()
    collected(**layers | {"model__layers__3": numbers(1)}).finish()


def test_a_port_that_holds_nothing_but_nan_is_a_run():
    """By law: NaN goes on to all that is computed from it, in every layer and every step."""
    nothing = np.full((1, 3, 4), np.nan, np.float32)
    layers = {f"step.{step}/model.layers.{n}": nothing for n in range(3) for step in (1, 2)}
    kept = collected(logits=nothing)
    for name, value in layers.items():
        kept.add(name, value)
    kept.fed([[1, 2, 3], [4], [5]])
    kept.finish()
    assert kept.dump.shapes.keys() == {"logits", *layers} and not kept.dump.notes


def test_nothing_captured_is_refused():
    with pytest.raises(InputError, match="nothing was captured"):
        Collection("Tiny", "torch").finish()


def test_a_pass_that_is_no_step_is_no_decoding():
    kept = collected(logits=numbers(0))
    kept.fed([[1, 2], [3], [4, 5]])
    assert kept.dump.tokens == [1, 2] and kept.dump.decoded == []


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        ((np.float32, ml_dtypes.bfloat16, ml_dtypes.bfloat16), "bfloat16"),
        ((np.float16, np.float32), None),
        ((np.int64, np.float16), "float16"),
        ((np.int64,), None),
    ],
)
def test_the_dtype_is_that_of_most_outputs(kinds, dtype):
    kept = collected(**{f"part{n}": numbers(n, kind) for n, kind in enumerate(kinds)})
    kept.finish()
    assert kept.dump.about.get("dtype") == dtype
