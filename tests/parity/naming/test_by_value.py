"""Streams whose names say nothing are known by the values of the first layer, or left. By hand.

The port is the reference itself, so every value but those that are changed here is right.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep import reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.by_value import recover_by_value
from lockstep.parity.naming.first_layer import FirstLayer, first_layer
from lockstep.parity.naming.plan import aligned
from lockstep.parity.naming.recovery import Recovery
from tests.parity.naming.kinds import MODELS, WITNESSES

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


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return of_layers(4, tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def deeper(tmp_path_factory):
    return of_layers(6, tmp_path_factory.mktemp("deeper"))


def of_layers(count: int, folder: Path):
    """A model of many layers, of those of another whose rows are mixed, as `port` gives one."""
    source = WITNESSES / MODELS["llama"]
    config = json.loads((source / "config.json").read_text())
    kinds = {"layer_types": ["full_attention"] * count} if "layer_types" in config else {}
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": count} | kinds))
    shards = [load_file(shard) for shard in sorted(source.glob("*.safetensors"))]
    tensors = {name: x for shard in shards for name, x in shard.items()}
    save_file(dict(deepened(tensors, count)), folder / "model.safetensors")
    model, taps = reference.load(folder), dict[str, np.ndarray]()
    model.forward(TOKENS, trace=taps.__setitem__)
    return "llama", first_layer(model, TOKENS), taps


def deepened(tensors: dict[str, np.ndarray], count: int) -> Iterator[tuple[str, np.ndarray]]:
    random = np.random.default_rng(1)
    for name, x in tensors.items():
        if ".layers." not in name:
            yield name, x
        for layer in range(count) if ".layers.0." in name else ():
            yield name.replace(".0.", f".{layer}."), random.permutation(x)


def recovered(port, values: dict[str, np.ndarray]) -> dict[str, str]:
    return recovery(port, values).names


def recovery(port, values: dict[str, np.ndarray]) -> Recovery:
    _, first, taps = port
    shapes = {name: value.shape for name, value in values.items()}
    known = {tap: value.shape for tap, value in taps.items()}
    return recover_by_value(shapes, known, {}, values.__getitem__, first)


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


def test_a_wrong_first_layer_leaves_all_to_a_map(port, tmp_path):
    """No value is right then, and a name alone would accuse right ports. The plan says so."""
    noise = np.random.default_rng(1)
    behind = [port[2][tap] for tap in streams(port)[1:-1]]
    wrong = [x + 0.3 * x.std() * noise.normal(size=x.shape) for x in behind]
    for name, usual in (("hidden_states_{}", True), ("x{}", True), ("foo.{}", False)):
        plan = recovery(port, {name.format(n): x for n, x in enumerate(wrong)})
        assert not plan.names and any("--map" in line for line in plan.plan) is usual


def test_a_bug_behind_the_first_layer_changes_no_names(port):
    """The second stream then is like that behind layer 1 more than like any other."""
    taps, noise = port[2], np.random.default_rng(1)
    for named in (as_transformers(port)[:-1], streams(port)[:-1], streams(port)[1:-1]):
        values = {f"h.{n}": taps[tap] for n, tap in enumerate(named)}
        wrong = values["h.1"] + 0.1 * values["h.1"].std() * noise.normal(size=values["h.1"].shape)
        assert recovered(port, values | {"h.1": wrong}) == dict(zip(values, named, strict=True))


def test_names_alone_accuse_no_right_port(port):
    """What is a stream but for a factor, one a row, or noise, is another thing, or unknown."""
    behind = streams(port)[1:-1]
    values = [port[2][tap] for tap in behind]
    rows = [x / np.sqrt(np.mean(x * x, -1, keepdims=True)) for x in values]
    lens = [x * (port[1].gain + 0.5) for x in rows]
    centred = [x - x.mean(-1, keepdims=True) for x in values]
    noise = [np.random.default_rng(n).normal(size=x.shape) for n, x in enumerate(values)]
    for others in ([x * 0.5 for x in values], rows, lens, centred, noise):
        assert not recovered(port, {f"h.{n}": x for n, x in enumerate(others)})


def of_a_layer(*parts: str) -> list[str]:
    return [f"model.layers.0.{part}" for part in parts]


def behind_layers(*numbers: int) -> list[str]:
    return [f"model.layers.{n}" for n in numbers]


START, END = "model.embed_tokens", "model.norm"
PARTS = of_a_layer(
    "input_layernorm", "self_attn.o_proj", "residual", "post_attention_layernorm", "mlp.down_proj"
)
BOTH = [tap for n in range(4) for tap in (f"model.layers.{n}.residual", f"model.layers.{n}")]


@pytest.mark.parametrize(
    "taps",
    [
        PARTS[::3],
        PARTS[:3],
        PARTS[:4],
        PARTS,
        BOTH,
        BOTH[:4],
        BOTH[:5],
        [START, *behind_layers(2), END],
        [START, *behind_layers(0, 2), END],
        [START, *behind_layers(1, 2), END],
        [START, *behind_layers(0, 2, 3), END, END],
        [START, *behind_layers(0, 2, 3)],
        [START, *behind_layers(0, 2, 3), END],
        behind_layers(0, 2),
        [*behind_layers(0, 2, 3), END],
        [*behind_layers(1, 2, 3), END],
        behind_layers(0, 1, 2),
        [START, START],
        [START, *behind_layers(0, 1), END],
    ],
)
def test_other_lists_of_a_right_port_are_left(deep, taps):
    """Two norms of one layer, some layers, two values of each: none of them is one a layer."""
    for name in ("t{}", "hidden_states.{}", "resid.{}"):
        assert recovered(deep, {name.format(n): deep[2][tap] for n, tap in enumerate(taps)}) == {}


@pytest.mark.parametrize("left_out", [2, 3, 4])
@pytest.mark.parametrize("around", [([START], []), ([START], [END]), ([], [END])])
def test_a_list_that_lacks_a_later_layer_is_left(deeper, left_out, around):
    """As many as there may be, but from some layer on each is that behind the next one."""
    before, after = around
    wanted = [*before, *behind_layers(*(n for n in range(6) if n != left_out)), *after]
    assert recovered(deeper, {f"h.{n}": deeper[2][tap] for n, tap in enumerate(wanted)}) == {}


@pytest.mark.parametrize("around", [([START], []), ([START], [END]), ([], [END])])
def test_a_bug_in_a_later_layer_changes_no_names(deeper, around):
    before, after = around
    wanted = [*before, *behind_layers(0, 1, 2, 3, 4), *after]
    values = {f"h.{n}": deeper[2][tap] for n, tap in enumerate(wanted)}
    noise, late = np.random.default_rng(1), f"h.{len(before) + 3}"
    values[late] = values[late] + 0.3 * values[late].std() * noise.normal(size=values[late].shape)
    assert recovered(deeper, values) == dict(zip(values, wanted, strict=True))


@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("name", ["h.{}", "hidden_states.{}", "layers.{}.output"])
def test_the_last_may_be_normed_where_the_embedding_is_left_out(deep, name, begin):
    wanted = [*behind_layers(0, 1, 2), END]
    taps = {name.format(n): tap for n, tap in enumerate(wanted, begin)}
    assert recovered(deep, {one: deep[2][tap] for one, tap in taps.items()}) == taps


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.complex64, np.int64, bool])
def test_what_is_no_activation_takes_no_part(port, dtype, place):
    values = [port[2][tap] for tap in as_transformers(port)]
    values[place] = values[place].astype(dtype)
    assert recovered(port, {f"h.{n}": x for n, x in enumerate(values)}) == {}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("place", [0, 1, -1])
def test_numbers_beyond_float32_raise_no_warning(port, place):
    values = [port[2][tap] for tap in as_transformers(port)]
    values[place] = np.full(values[place].shape, 1e300)
    recovered(port, {f"h.{n}": x for n, x in enumerate(values)})


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
    taken = {streams(port)[1]: "theirs"}
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


@pytest.mark.parametrize(("width", "normed"), [(47, False), (48, True), (96, False)])
def test_rows_of_another_width_come_out_of_no_norm(width, normed):
    """By hand: rows of ones are normed by a gain of ones, if they are as wide."""
    gain = np.ones(48, np.float32)
    layer = FirstLayer({}, "before", "layers.0", 2, "norm", gain, None, lambda: iter(()))
    assert layer.is_normed(np.ones((20, 1, width), np.float32)) == normed
