"""Packing one kind at a time. By law, against folders where that kind alone was packed."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.quantizing import Rule, quantize, recipe_of
from lockstep.parity.sensitivity import Example, packing_costs
from lockstep.parity.sensitivity.cost import divergence
from lockstep.parity.sensitivity.kinds import ALL, by_kind, by_layer, kinds
from lockstep.parity.sensitivity.measure import batched, logits, packable, with_packed
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.parity.builders import checkpoint

ROOT = Path(__file__).parents[3]
WITNESSES, DEMO = ROOT / "tests/witnesses", ROOT / "parity/demo/checkpoint"
THREE = recipe_of(3, 32, "affine")
EXAMPLES = [Example((3, 1, 4, 1, 5)), Example((9, 2, 6, 5, 3, 5, 8)), Example((7, 9))]


@pytest.mark.parametrize("kind", ["self_attn.q_proj", "mlp.down_proj", "lm_head", "embed_tokens"])
def test_a_kind_alone_is_what_a_folder_packed_so_gives(kind, tmp_path):
    source = checkpoint(tmp_path / "dense")
    model = fast.load(source, backend="cpu")
    (cost,) = packing_costs(model, EXAMPLES, THREE, only=kind.__eq__)
    alone = recipe_of(3, 32, "affine", ["*"], [Rule(kind, THREE.default)])
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
    same = with_packed(model, [], THREE)
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
    head, embedding = (with_packed(model, [one], THREE) for one in ("lm_head", table))
    taps = [taken(one) for one in (model, head, embedding)]
    assert (taps[1][table] == taps[0][table]).all() and (taps[2][table] != taps[0][table]).any()
    assert (taps[1]["logits"] != taps[0]["logits"]).any()
    assert (taps[1]["model.norm"] == taps[0]["model.norm"]).all()


def test_kinds_and_layers():
    """By hand."""
    assert by_kind("model.layers.11.mlp.experts.up_proj") == "mlp.experts.up_proj"
    assert by_kind("transformer.h.0.attn.c_attn") == "attn.c_attn"
    assert by_kind("model.embed_tokens") == "embed_tokens"
    assert by_layer("model.layers.11.mlp.up_proj") == "layer 11"
    found = kinds(open_checkpoint(WITNESSES / "models/tied_bfloat16"),
                  ["model.embed_tokens", "model.layers.0.mlp.up_proj"], "module")  # fmt: skip
    assert list(found) == ["model.embed_tokens", "model.layers.0.mlp.up_proj", "lm_head", ALL]


def test_batches_hold_every_example_once(monkeypatch):
    from lockstep.parity.sensitivity import measure

    monkeypatch.setattr(measure, "BATCH", 12 * 40)
    batches = batched(EXAMPLES, 40)
    assert [[len(one.ids) for one in batch] for batch in batches] == [[2, 5], [7]]
    assert packable(open_checkpoint(DEMO), recipe_of(2, 64, "affine"))[0] == "model.embed_tokens"


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
