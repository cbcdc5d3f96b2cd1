"""Packing one kind at a time. By law, against folders where that kind alone was packed."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.quantizing import Rule, parse_packing, quantize, recipe_of
from lockstep.parity.sensitivity import Example, packing_costs, read_text
from lockstep.parity.sensitivity.cost import divergence
from lockstep.parity.sensitivity.kinds import ALL, by_kind, by_layer, kinds
from lockstep.parity.sensitivity.measure import (
    batched,
    logits,
    packable,
    packed_weights,
    with_weights,
)
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.builders import checkpoint
from tests.sampled import sampled

ROOT = Path(__file__).parents[3]
WITNESSES, DEMO = ROOT / "tests/witnesses", ROOT / "parity/demo/checkpoint"
THREE = recipe_of(3, 32, "affine")
EXAMPLES = [Example((3, 1, 4, 1, 5)), Example((9, 2, 6, 5, 3, 5, 8)), Example((7, 9))]


@sampled(1, "mlp.down_proj")
@pytest.mark.parametrize("kind", ["self_attn.q_proj", "mlp.down_proj", "lm_head", "embed_tokens"])
def test_a_kind_alone_is_what_a_folder_packed_so_gives(kind, tmp_path):
    source = checkpoint(tmp_path / "dense")
    model = fast.load(source, backend="cpu")
    (cost,) = packing_costs(model, EXAMPLES, THREE, only=kind.__eq__)
    alone = recipe_of(3, 32, "affine", [], [Rule(kind, THREE.default), Rule("*", None)])
    quantize(source, tmp_path / "packed", alone)
    models = reference.load(source), reference.load(tmp_path / "packed")
    expected = [
        divergence(*(one.forward(np.array([example.ids]))[0] for one in models))
        for example in EXAMPLES
    ]
    assert len(cost.kl) == sum(map(len, expected)) == 14 and cost.kl.mean() > 1e-4
    np.testing.assert_allclose(np.sort(cost.kl), np.sort(np.concatenate(expected)), rtol=2e-3)


@pytest.mark.parametrize("name", ["models/tied_bfloat16", "models/affine_4_64", "qwen3_moe/packed"])
def test_packing_none_costs_nothing_and_all_of_them_the_most(name):
    """By law: more than any kind alone; each weight is in one kind, a tied table in two."""
    folder = WITNESSES / name
    model, found = fast.load(folder, backend="cpu"), open_checkpoint(folder)
    costs = packing_costs(model, EXAMPLES, recipe_of(2, 32, "affine"))
    assert costs[-1].kind == ALL and len(costs) > 5
    assert all(costs[-1].kl.mean() > cost.kl.mean() > 0 for cost in costs[:-1])
    assert costs[-1].matrices == sum(cost.matrices for cost in costs[:-1])
    same = with_weights(model, {})
    assert (logits(same, EXAMPLES) == logits(model, EXAMPLES)).all() and found.names


def taken(model) -> dict[str, np.ndarray]:
    """Return every tap of two tokens."""
    taps: dict[str, np.ndarray] = {}
    model.forward(np.array([[3, 1]]), trace=taps.__setitem__)
    return taps


def test_a_tied_table_is_two_kinds():
    """By hand: with the head packed the embedding is read as it was, and the other way round."""
    model = fast.load(WITNESSES / "models/tied_bfloat16", backend="cpu")
    table = "model.embed_tokens"
    both = ("lm_head", table)
    packed = packed_weights(model, both, dict.fromkeys(both, THREE.default))
    assert packed["lm_head"] is packed[table]  # and packed once
    head, embedding = (with_weights(model, {one: packed[one]}) for one in both)
    taps = [taken(one) for one in (model, head, embedding)]
    assert (taps[1][table] == taps[0][table]).all() and (taps[2][table] != taps[0][table]).any()
    assert (taps[1]["logits"] != taps[0]["logits"]).any()
    assert (taps[1]["model.norm"] == taps[0]["model.norm"]).all()


def test_a_tied_table_that_is_packed_in_two_ways_is_packed_twice():
    """By hand."""
    model = fast.load(WITNESSES / "models/tied_bfloat16", backend="cpu")
    ways = {"lm_head": THREE.default, "model.embed_tokens": parse_packing("8/32")}
    packed = packed_weights(model, [*ways], ways)
    assert [packed[module].bits for module in ways] == [3, 8]


def test_kinds_and_layers():
    """By hand."""
    assert by_kind("model.layers.11.mlp.experts.up_proj") == "mlp.experts.up_proj"
    assert by_kind("transformer.h.0.attn.c_attn") == "attn.c_attn"
    assert by_kind("model.embed_tokens") == "embed_tokens"
    assert by_layer("model.layers.11.mlp.up_proj") == "layer 11"
    modules = ["model.embed_tokens", "model.layers.0.mlp.up_proj", "lm_head"]
    assert list(kinds(modules, "module")) == [*modules, ALL]


def test_batches_hold_every_example_once(monkeypatch):
    from lockstep.parity.sensitivity import measure

    monkeypatch.setattr(measure, "BATCH", 12 * 40)
    batches = batched(EXAMPLES, 40)
    assert [[len(one.ids) for one in batch] for batch in batches] == [[2, 5], [7]]


def test_a_tied_head_is_packed_as_any_other():
    """By hand: a table is two modules, each of which a rule may keep, and whose width must fit."""
    demo = open_checkpoint(DEMO)
    found = packable(demo, recipe_of(2, 64, "affine"))
    assert (next(iter(found)), [*found][-1]) == ("model.embed_tokens", "lm_head")
    kept = recipe_of(2, 64, "affine", [], [Rule("lm_head", None)])
    assert "lm_head" not in packable(demo, kept) and "model.embed_tokens" in packable(demo, kept)
    narrow = open_checkpoint(WITNESSES / "models/tied_bfloat16")  # 64 wide
    wide = recipe_of(2, 32, "affine", [], [Rule("lm_head", parse_packing("8/128"))])
    assert "lm_head" not in packable(narrow, wide)
    with pytest.raises(InputError, match="fits no weight"):
        packable(demo, recipe_of(2, 64, "affine", ["lm_haed"]))


def test_the_command(lockstep, tmp_path):
    """The demo in 2 bits can no longer do its sums; its questions are right in 4."""
    questions = tmp_path / "questions.json"
    asked = json.loads((ROOT / "parity/demo/questions.json").read_text(encoding="utf-8"))[:3]
    questions.write_text(json.dumps(asked), encoding="utf-8")
    said = lockstep("sensitivity", DEMO, "--questions", questions, "--bits", 2, "--json", "-")
    assert said.code == 0, said
    document = json.loads(said.out)
    by_kind = {cost["kind"]: cost for cost in document["costs"]}
    assert by_kind["lm_head"]["right"] == by_kind["lm_head"]["asked"] == 3
    assert by_kind[ALL]["right"] < 3 and by_kind[ALL]["lost"][0] in [
        one["question"] for one in asked
    ]
    order = [cost["kl_mean"] for cost in document["costs"]]
    assert order == sorted(order, reverse=True) and document["examples"] == 3


def test_a_text_is_cut_into_pieces(lockstep, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Monday comes before Tuesday. " * 9, encoding="utf-8")
    options = ["--text", text, "--window", 8, "--bits", 3, "--by", "layer"]
    said = lockstep("sensitivity", DEMO, *options)
    assert said.code == 0 and said.err == ""
    assert said.out.splitlines()[0] == "3 bits in groups of 64, each layer alone"
    assert len(said.out.splitlines()) == 3 + 4 + 3


def test_a_question_beyond_the_context_is_refused(lockstep, tmp_path):
    file = tmp_path / "questions.json"
    file.write_text(json.dumps([{"question": "why " * 900, "answer": "so"}]), encoding="utf-8")
    found = lockstep("sensitivity", DEMO, "--questions", file)
    assert found.code == 2 and "but the model's context is 512" in found.err


def test_logits_that_are_not_finite_are_refused(tmp_path):
    source = checkpoint(tmp_path / "dense")
    model = fast.load(source, backend="cpu")
    model.base["model.norm.weight"] = model.base["model.norm.weight"] * np.float32(np.inf)
    model.weights = model.base
    with pytest.raises(InputError, match="logits are not finite"):
        packing_costs(model, EXAMPLES, THREE)


class Beginning:
    """A tokenizer of one token a letter that puts 99 before a text."""

    def encode_plain(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode(self, text: str) -> list[int]:
        return [99, *self.encode_plain(text)]


def test_each_piece_begins_as_a_text_does(tmp_path):
    (tmp_path / "text").write_text("ABCDEF", encoding="utf-8")
    found = read_text(tmp_path / "text", Beginning(), window=4)
    assert [one.ids for one in found] == [(99, 65, 66, 67), (99, 68, 69, 70)]


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "questions"),
        ("[]", "one at least"),
        ('[{"question": "a"}]', "entry 0"),
        ('[{"question": "a", "answer": 3}]', "entry 0"),
        ('["a"]', "entry 0"),
    ],
)
def test_bad_questions(lockstep, text, said, tmp_path):
    file = tmp_path / "questions.json"
    file.write_text(text, encoding="utf-8")
    found = lockstep("sensitivity", DEMO, "--questions", file)
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1


@pytest.mark.parametrize(
    "options", [[], ["--text", "absent.txt"], ["--text", "empty.txt"], ["--window", "1"]]
)
def test_nothing_to_try_it_on(lockstep, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("", encoding="utf-8")
    found = lockstep("sensitivity", DEMO, *options)
    assert found.code == 2 and len(found.err.splitlines()) == 1
