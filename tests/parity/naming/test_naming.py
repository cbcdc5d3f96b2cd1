"""Map, tables and recovery together, on names of a real model. By hand."""

import numpy as np
import pytest

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.plan import aligned, known_taps
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

LENGTH = 5


@pytest.fixture(scope="module")
def known(plain) -> dict[str, tuple[int, ...]]:
    return known_taps(open_checkpoint(plain), length=LENGTH)


def theirs(known, names: dict[str, str], tmp_path) -> Dump:
    """Return a dump of taps under other names, without the batch axis."""
    shapes = {name: known[tap][1:] for name, tap in names.items()}
    return Dump(tmp_path, shapes, lambda name: np.zeros(shapes[name], np.float32))


def test_shapes_are_those_of_the_prompt(known):
    assert known["model.layers.0.self_attn.scores"][2:] == (LENGTH, LENGTH)
    assert known["logits"][:2] == (1, LENGTH)


def test_all_three_ways_together(known, tmp_path):
    names = {
        "secret": "model.layers.0.self_attn.o_proj",
        "secret2": "model.layers.1.self_attn.o_proj",
        "model.embed_tokens": "model.embed_tokens",
        "blocks.1.attn.wq": "model.layers.0.self_attn.q_proj",
        "blocks.2.attn.wq": "model.layers.1.self_attn.q_proj",
        "logits": "logits",
    }
    port = theirs(known, names, tmp_path)
    file = tmp_path / "map.yaml"
    file.write_text(
        "model.layers.0.self_attn.o_proj: secret\nmodel.layers.1.self_attn.o_proj: secret2\n"
    )
    found = aligned(port, known, file)
    assert {name: tap for tap, name in found.names.items()} == names
    assert found.plan[0] == "2 names mapped as map.yaml says"
    assert "layers counted from 1" in found.plan[1]
    assert "blocks.{layer}.attn.wq taken for" in found.plan[2]


def test_a_map_goes_before_what_a_name_seems_to_say(known, tmp_path):
    port = theirs(known, {"model.norm": "lm_head"}, tmp_path)
    file = tmp_path / "map.yaml"
    file.write_text("lm_head: model.norm\n")
    assert aligned(port, known, file).names == {"lm_head": "model.norm"}


def test_later_steps_are_named_as_the_first(known, tmp_path):
    names = {f"blocks.{n}.attn.wq": f"model.layers.{n}.self_attn.q_proj" for n in (0, 1)}
    port = theirs(known, names, tmp_path)
    shapes = {**port.shapes, **{f"step.1/{name}": (1, 4) for name in names}}
    found = aligned(Dump(tmp_path, shapes, port.read), known)
    assert found.names["step.1/model.layers.1.self_attn.q_proj"] == "step.1/blocks.1.attn.wq"
    assert len(found.names) == 4


def test_names_that_are_known_stay_and_strangers_are_left(known, tmp_path):
    names = {tap: tap for tap in known} | {"blocks.0.attn.wq": "model.embed_tokens"}
    found = aligned(theirs(known, names, tmp_path), known)
    assert found.plan == [] and found.names["blocks.0.attn.wq"] == "blocks.0.attn.wq"


def test_taps_counted_from_1_and_averages_over_heads_are_told(known, tmp_path):
    """An average is compared with nothing; else a right port would have a wrong shape."""
    names = {tap.replace("layers.1", "layers.2").replace("layers.0", "layers.1"): tap
             for tap in known}  # fmt: skip
    shapes = {name: known[tap] for name, tap in names.items()}
    probs = [name for name in names if name.endswith("probs")]
    shapes |= {name: known[names[name]][2:] for name in probs}
    found = aligned(Dump(tmp_path, shapes, lambda name: np.zeros(shapes[name])), known)
    assert {name: tap for tap, name in found.names.items() if tap in known} == {
        name: tap for name, tap in names.items() if name not in probs
    }
    assert [line.partition(" of")[0] for line in found.plan[:2]] == [
        "layers", "one matrix for all heads in 2 tensors, as averages are: compared with nothing"
    ]  # fmt: skip


def test_a_map_that_calls_averages_probabilities_is_told_so(known, tmp_path):
    """Libraries average over heads, (B, L, S) or (L, S), and the map can only say probabilities."""
    taps = {f"att{n}": f"model.layers.{n}.self_attn.probs" for n in (0, 1)}
    shapes = {"att0": (1, LENGTH, LENGTH), "att1": (LENGTH, LENGTH), "step.1/att0": (1, 1, 6)}
    (file := tmp_path / "map.yaml").write_text("model.layers.{layer}.self_attn.probs: att{layer}")
    found = aligned(Dump(tmp_path, shapes, lambda name: np.zeros(shapes[name])), known, file)
    assert not {tap.removeprefix("step.1/") for tap in found.names} & {*taps.values()}
    assert sum("one matrix for all heads in 2 tensors" in line for line in found.plan) == 1


@pytest.mark.parametrize("spelled", ["net.model.layers.{}", "model.layers.{}"])
def test_a_module_and_its_last_part_are_one_tap_behind_wrappers_and_counted_from_1(
    known, tmp_path, spelled
):
    begin = int(spelled.startswith("model"))
    parts = {
        spelled.format(n + begin) + part: f"model.layers.{n}.self_attn.o_proj"
        for n in (0, 1)
        for part in (".self_attn", ".self_attn.o_proj")
    }
    shapes = {name: known[tap] for name, tap in parts.items()}
    found = aligned(Dump(tmp_path, shapes, lambda name: np.zeros(shapes[name])), known)
    for name, tap in parts.items():
        assert (found.names.get(tap) == name) is name.endswith("o_proj")


def test_which_layers_are_of_experts_is_asked_of_layers_from_0(tmp_path):
    """The first of two is dense, the second sparse: `layers.1.mlp` of a port from 1 is dense."""
    stream, parts = (1, LENGTH, 8), ("mlp.down_proj", "mlp.experts")
    known = {f"model.layers.{n}": stream for n in (0, 1)}
    known |= {f"model.layers.{n}.{part}": stream for n, part in enumerate(parts)}
    known["model.layers.1.mlp.gate"] = (1, LENGTH, 4)
    names = {f"model.layers.{n}.mlp": f"model.layers.{n - 1}.{parts[n - 1]}" for n in (1, 2)}
    names |= {f"model.layers.{n}": f"model.layers.{n - 1}" for n in (1, 2)}
    shapes = {name: known[tap] for name, tap in names.items()}
    found = aligned(Dump(tmp_path, shapes, lambda name: np.zeros(shapes[name])), known)
    assert {name: tap for tap, name in found.names.items()} == names


@pytest.mark.parametrize("wrapper", ["", "net."])
def test_what_a_map_gives_is_no_modules_last_part_too(known, tmp_path, wrapper):
    tap = "model.layers.0.mlp.down_proj"
    names = {"mine": tap, "model.layers.0.mlp": tap, "logits": "logits", "model.norm": "model.norm"}
    file = tmp_path / "map.yaml"
    file.write_text(f"{tap}: {wrapper}mine\n")
    port = theirs(known, {wrapper + name: one for name, one in names.items()}, tmp_path)
    assert aligned(port, known, file).names[tap] == f"{wrapper}mine"
