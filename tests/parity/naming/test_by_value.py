"""Streams whose names say nothing are known by the values of the first layer, or left. By hand.

The port is the reference itself, so every value but those that are changed here is right.
"""

from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.by_value import recover_by_value
from lockstep.parity.naming.first_layer import first_layer
from lockstep.parity.naming.plan import aligned

WITNESSES = Path(__file__).parents[2] / "witnesses"
MODELS = {
    "llama": "models/untied_float32",
    "gpt2": "gpt2/original",
    "gemma4": "gemma4/dense",
    "moe": "qwen3_moe/separate",
}
TOKENS = np.array([[3, 14, 15, 9, 26, 5]])
LAYER = {"gpt2": "transformer.h"}
EMBEDDED = {"gpt2": "transformer.drop"}
NORM = {"gpt2": "transformer.ln_f"}


@pytest.fixture(scope="module", params=MODELS)
def port(request):
    """A kind of model, its first layer, and all that it computes."""
    model = reference.load(WITNESSES / MODELS[request.param])
    taps: dict[str, np.ndarray] = {}
    model.forward(TOKENS, trace=taps.__setitem__)
    return request.param, first_layer(model, TOKENS), taps


def recovered(port, values: dict[str, np.ndarray]) -> dict[str, str]:
    _, first, taps = port
    shapes = {name: value.shape for name, value in values.items()}
    known = {tap: value.shape for tap, value in taps.items()}
    return recover_by_value(shapes, known, set(), values.__getitem__, first).names


def streams(port) -> list[str]:
    """The taps before the layers, behind each of them, and behind the last norm."""
    kind, first, _ = port
    layer = LAYER.get(kind, "model.layers")
    behind = [f"{layer}.{n}" for n in range(first.layers)]
    return [EMBEDDED.get(kind, "model.embed_tokens"), *behind, NORM.get(kind, "model.norm")]


def as_transformers(port) -> list[str]:
    """The taps of `output_hidden_states=True`."""
    before, *behind, norm = streams(port)
    return [before, *behind[:-1], norm]


def test_bare_streams_of_gpt2_are_its_layers_where_no_value_says_otherwise(tmp_path):
    """`h.0` is a module's path there, which a bug does not change."""
    model = reference.load(WITNESSES / MODELS["gpt2"])
    taps: dict[str, np.ndarray] = {}
    model.forward(TOKENS, trace=taps.__setitem__)
    known = {tap: value.shape for tap, value in taps.items()}
    layers = model.config.num_hidden_layers
    wrong = {f"h.{n}": 2 * taps[f"transformer.h.{n}"] for n in range(layers)}
    shapes = {name: value.shape for name, value in wrong.items()}
    dump = Dump(tmp_path, shapes, wrong.__getitem__)
    found = aligned(dump, known, None, lambda: first_layer(model, TOKENS))
    assert found.names == {f"transformer.{name}": name for name in wrong}


@pytest.mark.parametrize("name", ["h.{}", "hidden_states.{}", "foo{}", "a/{}/b"])
@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("which", ["outputs", "inputs", "as transformers", "all", "outputs, norm"])
def test_streams_are_what_their_values_are(port, name, begin, which):
    """Whether they enter layers or leave them, whether the last one is behind the last norm."""
    before, *behind, norm = streams(port)
    wanted = {
        "outputs": behind,
        "inputs": [before, *behind[:-1]],
        "as transformers": [before, *behind[:-1], norm],
        "all": [before, *behind],
        "outputs, norm": [*behind, norm],
    }[which]
    taps = {name.format(n): tap for n, tap in enumerate(wanted, begin)}
    assert recovered(port, {one: port[2][tap] for one, tap in taps.items()}) == taps


def test_half_precision_hides_no_value(port):
    taps = {f"h.{n}": tap for n, tap in enumerate(as_transformers(port))}
    rough = {name: port[2][tap].astype(np.float16) for name, tap in taps.items()}
    assert recovered(port, rough) == taps


def test_any_part_of_layers_is_known_by_its_values(port):
    _, first, taps = port
    part = f"{streams(port)[1].removesuffix('0')}{{}}.residual"
    values = {f"thing.{n}": taps[part.format(n)] for n in range(first.layers)}
    assert recovered(port, values) == {f"thing.{n}": part.format(n) for n in range(first.layers)}


def test_a_wrong_first_layer_leaves_usual_names_their_word(port):
    """No value is right; but as many as layers, near to what leaves the first, are its streams."""
    behind = streams(port)[1:-1]
    noise = np.random.default_rng(1)
    wrong = {tap: port[2][tap] for tap in behind}
    wrong = {tap: x + 0.3 * x.std() * noise.normal(size=x.shape) for tap, x in wrong.items()}
    for usual in ("h.{}", "hidden_states_{}", "layers.{}.output", "x{}"):
        taps = {usual.format(n): tap for n, tap in enumerate(behind)}
        assert recovered(port, {name: wrong[tap] for name, tap in taps.items()}) == taps
    for other in ("foo.{}", "attn.h.{}", "norm.{}"):
        assert not recovered(port, {other.format(n): wrong[tap] for n, tap in enumerate(behind)})


def test_names_alone_accuse_no_right_port(port):
    """What is a stream but for a factor, one a row, or noise, is another thing, or unknown."""
    behind = streams(port)[1:-1]
    values = [port[2][tap] for tap in behind]
    rows = [x / np.sqrt(np.mean(x * x, -1, keepdims=True)) for x in values]
    noise = [np.random.default_rng(n).normal(size=x.shape) for n, x in enumerate(values)]
    for others in ([x * 0.5 for x in values], rows, noise):
        assert not recovered(port, {f"h.{n}": x for n, x in enumerate(others)})


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("name", ["h.{}", "lora.{}.B"])
def test_numbers_of_a_broken_port_are_no_streams(port, bad, name):
    count = port[1].layers
    shape = port[2][port[1].behind].shape
    broken = {name.format(n): np.full(shape, bad, np.float32) for n in range(count)}
    assert recovered(port, broken) == {}


def test_numbers_that_no_layer_has_leave_all(port):
    before, *behind, norm = streams(port)
    values = {f"h.{n}": port[2][tap] for n, tap in enumerate([before, *behind, behind[-1], norm])}
    assert not recovered(port, values)
    beyond = {f"h.{n + 2}": port[2][tap] for n, tap in enumerate(behind)}
    assert not recovered(port, beyond)


def test_the_taps_of_others_are_given_to_none(port):
    _, first, taps = port
    values = {f"h.{n}": taps[tap] for n, tap in enumerate(streams(port)[1:-1])}
    shapes = {name: x.shape for name, x in values.items()}
    known = {tap: x.shape for tap, x in taps.items()}
    taken = {streams(port)[1]}
    assert not recover_by_value(shapes, known, taken, values.__getitem__, first).names


def test_what_stands_beside_the_layers_is_known_too(port):
    before = streams(port)[0]
    assert recovered(port, {"start": port[2][before]}) == {"start": before}
    assert not recovered(port, {"start": port[2][before] + 1})


def test_the_plan_says_why(port, tmp_path):
    _, first, taps = port
    values = {f"h.{n}": taps[tap] for n, tap in enumerate(as_transformers(port))}
    known = {tap: value.shape for tap, value in taps.items()}
    shapes = {name: value.shape for name, value in values.items()}
    found = aligned(Dump(tmp_path, shapes, values.__getitem__), known, None, lambda: first)
    assert [*found.names] == as_transformers(port)
    assert any("by the values that enter layer 0" in line for line in found.plan)
