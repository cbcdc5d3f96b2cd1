"""Tensors of all layers are taken apart, whatever they are called. By hand, and by law."""

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.naming.stacked import taken_apart
from tests.parity.explaining.ports import dumped, explained, ids, model_of, port

MODEL = "models/untied_float32"
KNOWN = {"model.embed_tokens": (1, 5, 8), "logits": (1, 5, 31)} | {
    f"model.layers.{layer}{part}": shape
    for layer in range(3)
    for part, shape in (("", (1, 5, 8)), (".self_attn.q_norm", (1, 5, 2, 4)))
}


def stacked(taps, word, axis=0):
    """Return what a scan over the layers leaves: each part once, with one axis for all layers."""
    parts = [tap.removeprefix("model.layers.0") for tap in taps if ".layers.0" in tap]
    layers = len({tap.split(".")[2] for tap in taps if tap.startswith("model.layers.")})
    rest = {tap: value for tap, value in taps.items() if ".layers." not in tap}
    return rest | {
        word + part: np.stack([taps[f"model.layers.{one}{part}"] for one in range(layers)], axis)
        for part in parts
    }


@pytest.mark.parametrize("word", ["model.layers", "layers", "decoder.blocks"])
@pytest.mark.parametrize("bug", ["rope-sign-flipped", None])
def test_a_bug_in_tensors_of_all_layers_is_named(bug, word):
    taps = stacked(port(MODEL, [bug] if bug else []), word)
    found = explained(MODEL, taps)
    assert ids(found) == ({bug} if bug else set()) and found.compared > 24
    assert any(line.startswith("an axis of 2 layers taken apart") for line in found.conventions)


@pytest.mark.parametrize("bug", ["rope-sign-flipped", None])
def test_layers_behind_the_batch_are_taken_apart(bug):
    taps = stacked(port(MODEL, [bug] if bug else []), "layers", axis=1)
    found = explained(MODEL, taps)
    assert ids(found) == ({bug} if bug else set()) and found.compared > 24
    assert found.unmatched == []


@pytest.mark.parametrize("first", [0, 1])
def test_streams_are_one_more_with_the_embedding(first):
    taps = port(MODEL, ["final-norm-missing"], level="layers")
    streams = ["model.embed_tokens", "model.layers.0", "model.layers.1"][first:]
    some = {"hidden_states": np.stack([taps[tap] for tap in streams]), "logits": taps["logits"]}
    found = explained(MODEL, some)
    assert ids(found) == {"final-norm-missing"} and found.compared >= 3


@pytest.mark.parametrize(
    ("name", "shape", "parts"),
    [
        ("layers.mlp", (3, 1, 5, 8), ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp"]),
        ("model.layers", (3, 5, 8), ["model.layers.0", "model.layers.1", "model.layers.2"]),
        ("q_norm", (3, 5, 2, 4), ["layers.0.q_norm", "layers.1.q_norm", "layers.2.q_norm"]),
        ("step.1/layers.wi_0", (3, 5, 8), [f"step.1/layers.{n}.wi_0" for n in range(3)]),
        ("all.hidden_states", (4, 5, 8), [f"all.hidden_states.{n}" for n in range(4)]),
    ],
)
def test_names_of_parts_by_hand(name, shape, parts):
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    apart, (line,) = taken_apart(dumped({name: value}), KNOWN, str)
    assert [*apart.shapes] == parts and set(apart.shapes.values()) == {shape[1:]}
    for number, part in enumerate(parts):
        assert np.array_equal(apart.read(part), value[number])
    assert line == "an axis of 3 layers taken apart in 1 tensors"


@pytest.mark.parametrize("axis", [0, 1])
def test_stacks_of_steps_are_taken_apart_as_those_of_the_prompt(axis):
    """Before, a port that dumps stacks was clean by what lies outside of its layers alone."""
    passes, model = {}, model_of(MODEL)
    cache = model.make_cache()
    for step, fed in (("", [3, 14, 15, 92, 65, 7]), ("step.1/", [5]), ("step.2/", [6])):
        taps = {}
        model.forward([fed], cache=cache, trace=taps.__setitem__)
        passes |= {step + name: value for name, value in stacked(taps, "layers", axis).items()}
    dump = dumped(passes, tokens="[3, 14, 15, 92, 65, 7]", decoded="[5, 6]")
    found = explain(model, dump, faults=())
    assert (found.verdict, found.unmatched, found.steps) == ("clean", [], 2)
    name = "step.2/layers.mlp.up_proj"
    passes[name] = passes[name] + np.float32(0.5)
    assert explain(model, dump, faults=()).verdict == "unknown"


def of_batch(rows):
    """Return the taps of as many prompts."""
    return {tap: (rows, *shape[1:]) for tap, shape in KNOWN.items()}


@pytest.mark.parametrize(
    ("known", "name", "shape", "parts"),
    [
        (KNOWN, "layers.mlp", (1, 3, 5, 8), [f"layers.{n}.mlp" for n in range(3)]),
        (KNOWN, "mlp_out", (1, 3, 5, 8), [f"layers.{n}.mlp_out" for n in range(3)]),
        (KNOWN, "hidden_states", (1, 4, 5, 8), [f"hidden_states.{n}" for n in range(4)]),
        (KNOWN, "q_norm", (5, 3, 2, 4), [f"layers.{n}.q_norm" for n in range(3)]),  # no batch
        (of_batch(2), "q_norm", (2, 3, 5, 2, 4), [f"layers.{n}.q_norm" for n in range(3)]),
        (of_batch(4), "hidden_states", (4, 3, 5, 8), [f"hidden_states.{n}" for n in range(3)]),
    ],
)
def test_layers_on_the_second_axis_by_hand(known, name, shape, parts):
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    apart, (line,) = taken_apart(dumped({name: value}), known, str)
    assert list(apart.shapes) == parts
    for number, part in enumerate(parts):
        assert apart.shapes[part] == (shape[0], *shape[2:])
        assert np.array_equal(apart.read(part), value[:, number])
    assert line == "an axis of 3 layers behind the batch taken apart in 1 tensors"


def test_as_many_rows_as_layers_are_not_guessed():
    dump = dumped({"layers.mlp": np.zeros((3, 3, 5, 8), np.float32)})
    line = "1 tensors left whole: of 3 layers and 3 rows, which axis is which?"
    assert taken_apart(dump, of_batch(3), str) == (dump, [line])


def test_of_as_many_tokens_as_layers_the_first_axis_is_the_layers():
    value = np.arange(72, dtype=np.float32).reshape(3, 3, 8)
    known = {tap: (1, 3, *shape[2:]) for tap, shape in KNOWN.items()}
    apart, _ = taken_apart(dumped({"layers.mlp": value}), known, str)
    assert np.array_equal(apart.read("layers.1.mlp"), value[1])


def test_heads_before_tokens_are_no_layers():
    """Three heads of three layers, whose key heads are as wide as the stream: by hand."""
    known = KNOWN | {f"model.layers.{n}.self_attn.q_rope": (1, 3, 5, 8) for n in range(3)}
    dump = dumped({"queries": np.zeros((1, 3, 5, 8), np.float32)})
    assert taken_apart(dump, known, str) == (dump, [])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.embed_tokens", (3, 5, 8)),  # a tap of the model: a batch, perhaps
        ("layers.2.mlp", (3, 5, 8)),  # of one layer
        ("layers_2.mlp", (3, 5, 8)),
        ("other", (4, 5, 8)),  # of another number of layers
        ("other", (3, 8)),  # of single rows
        ("other", (3, 5, 9)),  # of another width
    ],
)
def test_what_is_no_stack_stays(name, shape):
    dump = dumped({name: np.zeros(shape, np.float32)})
    assert taken_apart(dump, KNOWN, str) == (dump, [])


def test_a_part_takes_no_name_that_is_there():
    stack, part = np.zeros((3, 5, 8), np.float32), np.ones((5, 8), np.float32)
    dump = dumped({"layers.mlp": stack, "layers.1.mlp": part})
    assert taken_apart(dump, KNOWN, str) == (dump, [])
