"""Map files: what a line means, by hand; what is no line is refused with its place."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import align
from lockstep.parity.naming.mapping import read_map, to_json
from lockstep.reference.checkpoint.errors import InputError

GOOD = """\
# what our port calls things
model.embed_tokens: tok        # the table
model.layers.{layer}: "block {layer} out"
model.layers.{layer}.self_attn.q_proj: 'blocks.{layer}.attn.wq'
layer_offset: 1
logits: out
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str, name: str = "map.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_a_line_is_a_tap_and_their_name(write):
    names = read_map(write(GOOD))
    table = {
        "tok": "model.embed_tokens",
        "block 3 out": "model.layers.2",
        "blocks.1.attn.wq": "model.layers.0.self_attn.q_proj",
        "out": "logits",
    }
    assert {name: names.tap(name) for name in table} == table
    for name in ("block 0 out", "block 03 out", "block x out", "block 3 out ", "tokx", "blocks"):
        assert names.tap(name) is None


def test_json_says_the_same(write):
    entries = {"model.layers.{layer}": "b{layer}", "layer_offset": 1}
    names = read_map(write(json.dumps(entries), "map.json"))
    assert names.tap("b7") == "model.layers.6"


def test_a_product_that_holds_several_taps_may_be_named(write):
    """`explain` cuts it up, and no word need say what it holds."""
    names = read_map(write("model.layers.{layer}.mlp.gate_up_proj: b{layer}.wide"))
    assert names.tap("step.1/b2.wide") == "step.1/model.layers.2.mlp.gate_up_proj"


def dump(*names: str) -> Dump:
    tensors = {name: np.zeros((1, 2, 4), np.float32) for name in names}
    return Dump(Path("d"), {name: x.shape for name, x in tensors.items()}, tensors.__getitem__)


def test_one_name_is_said_as_one(write):
    names = read_map(write("logits: final\n"))
    assert names.plan({"final": "logits"}) == ["1 name mapped as map.yaml says"]


def test_an_alignment_follows_a_map_and_says_so(write):
    names = read_map(write(GOOD))
    port = dump("tok", "blocks.1.attn.wq", "model.norm", "scratch")
    found = names.mapped(port.shapes)
    aligned = align(port, mapped=found, told=names.plan(found))
    assert aligned.names == {
        "model.embed_tokens": "tok",
        "model.layers.0.self_attn.q_proj": "blocks.1.attn.wq",
        "model.norm": "model.norm",
        "scratch": "scratch",
    }
    assert aligned.plan == [
        "2 names mapped as map.yaml says",
        "layers counted from 1",
        "2 of 4 names mapped to taps",
    ]


def test_a_map_wins_over_a_modules_last_part(write):
    names = read_map(write("model.layers.{layer}.mlp.down_proj: m{layer}\n"))
    port = dump("m0", "model.layers.0.mlp")
    assert align(port, mapped=names.mapped(port.shapes)).names == {
        "model.layers.0.mlp.down_proj": "m0"
    }


def test_two_names_for_one_tap_are_refused(write):
    names = read_map(write("logits: a\n"))
    with pytest.raises(InputError, match="two names mean one tap"):
        align(dump("a", "logits"), mapped=names.mapped(["a", "logits"]))


def test_a_map_of_another_dump_is_refused(write):
    with pytest.raises(InputError, match=r"none of the dump's 1 names is in this map .*'b'"):
        read_map(write("logits: a\n")).mapped(["b"])


BAD = {
    "logits": "line 1",
    "logits:out": "line 1",
    "- logits: out": "line 1",
    "\nlogits: &x out": "line 2",
    "  logits: out": "line 1",
    "logits: [a]": "line 1",
    "logits: {a: b}": "line 1",
    "logits: |": "line 1",
    "logits: !!python/object:os.system x": "line 1",
    "logits: *x": "line 1",
    'logits: "a\\n"': "line 1",
    "nonsense: x": "no tap",
    "model.layers.{layer}: x": "once, or in neither",
    "logits: x{layer}": "once, or in neither",
    "model.layers.{layer}: x{layer}{layer}": "once, or in neither",
    "model.layers.{layer}: x{layer}{y}": "once, or in neither",
    "logits: 3": "must be a string",
    "layer_offset: x\nlogits: a": "whole number",
    "layer_offset: 9999\nlogits: a": "whole number",
    "layer_offset: 1": "no entries",
    "logits: a\nlogits: b": "twice, first in line 1",
    "logits: a\nlm_head: a": "twice, first in line 1",
    "logits: " + "x" * 500: "line 1",
    "# nothing": "no entries",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text[:30]))
def test_what_is_no_map_is_refused_with_its_place(write, text):
    with pytest.raises(InputError) as refused:
        read_map(write(text))
    assert BAD[text] in str(refused.value) and str(refused.value).isprintable()


@pytest.mark.parametrize(
    "text", ["[]", '{"logits": ["a"]}', '{"logits": null}', '{"a": 1, "a": 2}', "{", "{}"]
)
def test_what_is_no_json_map_is_refused(write, text):
    with pytest.raises(InputError):
        read_map(write(text, "map.json"))


def test_sizes_are_limited(write):
    with pytest.raises(InputError, match="limit"):
        read_map(write("#\n" * 3000))
    with pytest.raises(InputError, match="limit"):
        read_map(write("#" * (1 << 17)))


@given(st.text(max_size=60))
def test_any_text_is_a_map_or_is_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("map") / "map.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        assert read_map(path).rules
    except InputError as refused:
        assert str(refused).isprintable()


def test_single_names_make_a_map_again(write):
    found = {"a.b": "logits", "c": "model.layers.0"}
    assert read_map(write(to_json(found), "map.json")).mapped(["a.b", "c"]) == found
