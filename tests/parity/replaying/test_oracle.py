"""What the oracle makes of a port's taps: own error, inherited error, and what cannot pass."""

import json

import numpy as np
import pytest

from lockstep.parity.replaying.oracle import Oracle
from tests.parity import builders
from tests.parity.builders import TOKENS


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return builders.pair(builders.checkpoint(tmp_path_factory.mktemp("model")))


def port_taps(port, tokens=TOKENS):
    taps = {}
    port.forward(tokens, trace=taps.__setitem__)
    return {name: np.array(value) for name, value in taps.items()}


def judged(reference, taps, tokens=TOKENS, dtype="float32"):
    oracle = Oracle(reference, dtype)
    return {
        tap.name: tap for stage in oracle.stages(tokens) for tap in oracle.judge(stage, taps, "")
    }


def diverged(reference, taps):
    return [tap.name for tap in judged(reference, taps).values() if tap.status == "diverged"]


def test_a_right_port_is_right_at_every_tap(models):
    reference, port = models
    taps = port_taps(port)
    found = judged(reference, taps)
    assert found.keys() == taps.keys()
    assert {tap.status for tap in found.values()} == {"ok"}
    assert all(tap.inherited_error < 1e-5 for tap in found.values())


@pytest.mark.parametrize(
    "kept",
    [
        ["logits"],
        ["model.layers.0", "model.layers.1", "logits"],
        ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"],
    ],
)
def test_with_few_taps_each_piece_grows_to_the_next(models, kept):
    reference, port = models
    taps = port_taps(port)
    found = judged(reference, {name: taps[name] for name in kept})
    assert list(found) == kept
    assert {tap.status for tap in found.values()} == {"ok"}


def test_a_changed_tap_is_wrong_there_and_where_it_is_used(models):
    reference, port = models
    taps = port_taps(port)
    taps["model.layers.0"] = taps["model.layers.0"] * np.float32(1.5)  # and nothing after it
    found = judged(reference, taps)
    wrong = [name for name, tap in found.items() if tap.status == "diverged"]
    # The dump goes on as if nothing had been scaled: the next norm shows that by eps alone, the sum
    # that takes the stream fully. What is computed from later taps is right.
    later = ["model.layers.1.input_layernorm", "model.layers.1.residual"]
    assert wrong in (["model.layers.0", *later], ["model.layers.0", later[1]])
    assert found["model.layers.1.residual"].inherited_error > 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.embed_tokens", "model.layers.0.mlp.down_proj", "logits"])
def test_what_is_not_finite_never_passes(models, name, bad):
    reference, port = models
    taps = port_taps(port)
    taps[name] = taps[name].copy()
    taps[name][0, 3, 5] = bad
    found = judged(reference, taps)[name]
    assert found.status == "diverged"
    assert found.place is not None
    assert "[0, 3, 5]" in found.place


def test_nan_in_the_truth_and_in_the_port_is_no_parity(tmp_path):
    path = builders.checkpoint(tmp_path)
    raw = bytearray((path / "model.safetensors").read_bytes())
    length = int.from_bytes(raw[:8], "little")
    start = json.loads(raw[8 : 8 + length])["model.norm.weight"]["data_offsets"][0]
    raw[8 + length + start : 12 + length + start] = np.float32(np.nan).tobytes()
    (path / "model.safetensors").write_bytes(raw)
    reference, port = builders.pair(path)
    assert diverged(reference, port_taps(port)) == ["model.norm", "lm_head", "logits"]


def test_zeros_in_place_of_a_tap_diverge(models):
    reference, port = models
    taps = port_taps(port)
    taps["model.layers.1.mlp.up_proj"] = np.zeros_like(taps["model.layers.1.mlp.up_proj"])
    found = judged(reference, taps)["model.layers.1.mlp.up_proj"]
    assert (found.status, found.own_error) == ("diverged", pytest.approx(1))


@pytest.mark.parametrize(
    "shape", [(1, 8, 31), (8, 32), (1, 32, 8), (1, 8, 1), (1, 1, 32), (0, 8, 32)]
)
def test_another_shape_diverges_and_nothing_is_broadcast(models, shape):
    reference, port = models
    taps = port_taps(port) | {"model.layers.0": np.zeros(shape, np.float32)}
    found = judged(reference, taps)
    wrong = found["model.layers.0"]
    assert (wrong.status, wrong.shape, wrong.ratio) == ("diverged", shape, None)
    assert wrong.place == f"shape {list(shape)}, but should be [1, 8, 32]"
    # The reference's own value stands in for it, so what follows is judged from the taps before.
    assert found["model.layers.1.input_layernorm"].status == "ok"


def test_a_tap_that_is_rightly_empty_compares_nothing(models):
    reference, port = models
    none = np.zeros((1, 0), int)
    assert judged(reference, port_taps(port, none), none) == {}


def test_weights_count_as_the_port_holds_them(tmp_path):
    """A float32 checkpoint run in bfloat16 is not blamed for rounding its weights."""
    reference, port = builders.pair(builders.checkpoint(tmp_path), dtype="bfloat16")
    found = judged(reference, port_taps(port), dtype="bfloat16")
    assert {tap.status for tap in found.values()} == {"ok"}
    assert max(tap.ratio for tap in found.values()) <= 1.2


def test_a_step_is_judged_from_the_ports_own_cache(models):
    """The port's keys and values of the prompt, not the reference's, are what a step attends to."""
    reference, port = models
    cache, oracle = port.make_cache(), Oracle(reference, "float32")
    for step, tokens in enumerate((TOKENS, np.array([[7]]))):
        taps = {}
        port.forward(tokens, cache=cache, trace=taps.__setitem__)
        if step == 0:  # as if the port had meant it: a dump that says so is consistent
            keys = cache.keys[0]
            keys.buffer = keys.buffer * np.float32(1.01)
            taps["model.layers.0.self_attn.k_rope"] = keys.buffer[:, :, :8]
        found = [tap for stage in oracle.stages(tokens) for tap in oracle.judge(stage, taps, "")]
        if step == 1:
            assert {tap.status for tap in found} == {"ok"}
            inherited = {tap.name: tap.inherited_error for tap in found}
            assert inherited["model.layers.0.self_attn.context"] > 1e-4
