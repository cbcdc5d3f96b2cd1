"""From what layers are counted, and which numbers are layers at all. By hand."""

import pytest

from lockstep.parity.naming.recovery import recover_taps
from tests.parity.naming.test_recovery import layered


def some_layers(*numbers: int):
    """What is recovered of a port that dumped these layers alone, of four."""
    theirs = {f"blocks.{n}.attn.wq": (1, 7, 8) for n in numbers}
    return recover_taps(theirs, layered("self_attn.q_proj", count=4))


def test_some_layers_are_counted_from_what_their_numbers_allow():
    """By hand: layer 0 tells that they are counted from 0, layer 4 of four that they are from 1."""
    tap = "model.layers.{}.self_attn.q_proj"
    assert [*some_layers(0, 2).names.values()] == [tap.format(0), tap.format(2)]
    assert [*some_layers(2, 4).names.values()] == [tap.format(1), tap.format(3)]
    assert some_layers(1, 3).names == {} and "--map" in some_layers(1, 3).plan[-1]
    assert some_layers(0, 4).names == {}


FOUR = layered("self_attn.q_proj", "self_attn.o_proj", count=4) | {
    f"model.layers.{n}": (1, 7, 8) for n in range(4)
}
STRAYS = ["x.0", "emb.0", "ln_f.0", "final.norm.0", "hidden_states.0", "resid_pre.0", "attn_out.0",
          "h_in.0", "h.0", "l.0", "attn_layer.0", "layers.0"]  # fmt: skip


@pytest.mark.parametrize("stray", STRAYS)
def test_a_number_behind_any_word_is_no_layer(stray):
    """Alone, and beside queries of all layers or of some."""
    for numbers in ((), range(4), (0, 2)):
        queries = {f"blocks.{n}.attn.wq": (1, 7, 8) for n in numbers}
        found = recover_taps(queries | {stray: (1, 7, 8)}, FOUR)
        assert found.names.keys() == queries.keys() and found.unmatched == [stray]


@pytest.mark.parametrize(
    "stem",
    ["hidden_states.", "h_in.", "attn_out.", "x", "h.", "mlp.layers.", "vision.layers.", "foo.h."],
)
def test_numbered_streams_that_may_be_others_are_left(stem):
    streams = {f"{stem}{n}": (1, 7, 8) for n in range(4)}
    assert recover_taps(streams, FOUR).names == {}
    assert recover_taps(streams | layered("attn.wq", count=4, stem="blocks"), FOUR).unmatched == [
        *streams
    ]


@pytest.mark.parametrize(
    "stem",
    ["blocks.", "my_model/layers/", "resid_post_", "layer_out.", "any.encoder.layer.", "l_out_"],
)
def test_streams_of_all_layers_by_their_words(stem):
    streams = {f"{stem}{n}": (1, 7, 8) for n in range(4)}
    found = recover_taps(streams, FOUR).names
    assert found == {f"{stem}{n}": f"model.layers.{n}" for n in range(4)}


@pytest.mark.parametrize(
    "stray", ["logits.4", "final.norm.4", "blocks.4", "hidden.4", "x.0", "h.0"]
)
def test_a_stray_number_does_not_say_from_what_layers_are_counted(stray):
    """Of layers 1 and 3 nobody can say, whatever else bears a number."""
    queries = {f"blocks.{n}.attn.wq": (1, 7, 8) for n in (1, 3)}
    found = recover_taps(queries | {stray: (1, 7, 8)}, FOUR)
    assert found.names == {} and "--map" in found.plan[-1]


def test_who_has_all_layers_says_it_and_what_is_behind_the_last_is_left():
    theirs = layered("attn.wq", count=4, stem="blocks") | {"blocks.4": (1, 7, 8)}
    found = recover_taps(theirs, FOUR)
    assert found.names["blocks.3.attn.wq"] == "model.layers.3.self_attn.q_proj"
    assert found.unmatched == ["blocks.4"]


@pytest.mark.parametrize("count", [3, 4])
def test_embeddings_before_layers_counted_from_1_are_no_layer(count):
    streams = {f"layers.{n}": (1, 7, 8) for n in range(count)}
    assert recover_taps(streams | {"layers.1.attn.wq": (1, 7, 8)}, FOUR).names == {}


@pytest.mark.parametrize("numbers", [(1, 2, 3, 4), (1, 3)])
def test_beside_names_of_ours_others_are_counted_from_0_or_not_at_all(numbers):
    theirs = {f"blocks.{n}.attn.wo": (1, 7, 8) for n in numbers}
    own = layered("self_attn.q_proj", count=4)
    assert recover_taps(theirs | own, FOUR).names == {}
    assert recover_taps(theirs, FOUR, own=own).names == {}
    from_0 = {f"blocks.{n}.attn.wo": (1, 7, 8) for n in (0, 3)}
    assert recover_taps(from_0 | own, FOUR).names.keys() == from_0.keys()


def test_nothing_is_said_of_counting_where_nothing_would_be_matched():
    assert recover_taps({"timing.5": (3,), "layers.2.thing": (1, 7, 8)}, FOUR).plan == []


def test_one_of_all_layers_goes_before_one_of_some():
    theirs = layered("attn.wq", count=4, stem="blocks")
    found = recover_taps(theirs | {"layers.0.query": (1, 7, 8)}, FOUR)
    assert found.names.keys() == theirs.keys() and found.unmatched == ["layers.0.query"]


def test_one_row_is_the_last_token_of_logits_alone():
    ours = layered("self_attn.q_rope", shape=(1, 2, 7, 4)) | {"logits": (1, 7, 30)}
    one_head = layered("attn.q_rot", shape=(1, 1, 7, 4), stem="blocks")
    last = layered("attn.q_rot", shape=(1, 2, 1, 4), stem="blocks")
    assert recover_taps(one_head, ours).names == {} == recover_taps(last, ours).names
    unembedded = {"net.logits": (1, 1, 30)}
    assert recover_taps(unembedded, ours).names == {"net.logits": "logits"}


@pytest.mark.parametrize("words", ["mlp.fc1", "mlp.fc2", "ffn.c_fc1", "attn", "mlp", "moe"])
def test_words_of_several_meanings_are_left(words):
    """`fc1` is a gate here and up there; `attn` what attention gives, or the stream behind it."""
    parts = ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.experts")
    for part in parts:
        assert recover_taps(layered(words, stem="blocks"), layered(part)).names == {}
