"""`lockstep faults`, and planting an entry in a model."""

import json

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.chain.rows import ReferenceRows
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.around import mistakes
from lockstep.parity.faults.left_out import left_out
from lockstep.parity.graph import Evaluator, record
from lockstep.parity.planting.around import SETTINGS, STEPS, make
from lockstep.parity.planting.in_model import plant, reader
from lockstep.reference import ops
from tests.parity.conftest import DEMO, MODELS, ROOT
from tests.sampled import sampled

EVERY = (*catalogue(), *mistakes())
GEMMA = ROOT / "tests/witnesses/gemma4/sparse"


def fault(id):
    return next(one for one in catalogue() if one.id == id)


def test_every_entry_is_listed_with_its_family(lockstep):
    lines = lockstep("faults").out.splitlines()
    for one in EVERY:
        assert any(line.split()[:2] == [one.family, one.id] for line in lines)
    assert f"{len(EVERY)} classes can be planted" in lines[-1]


def test_the_json_has_all_classes(lockstep):
    said = json.loads(lockstep("faults", "--json", "-").out)
    assert [one["id"] for one in said["faults"]] == [one.id for one in EVERY]
    assert {one["id"]: one["reason"] for one in said["left_out"]} == left_out()


def test_an_entry_is_planted_in_the_demo(lockstep):
    said = lockstep("faults", "qk-norm-missing")
    assert said.code == 0
    assert "right     scores = norm(q) norm(k)^T" in said.out
    assert "model.layers.0.self_attn.q_norm" in said.out.splitlines()[-1]


def test_an_entry_may_read_what_is_computed_later(lockstep):
    said = lockstep("faults", "moe-router-input-wrong", "--model", str(GEMMA))
    assert said.code == 0
    first = [line.split()[-1] for line in said.out.splitlines() if line.startswith("normalised")]
    assert first == ["model.layers.0.router.norm"]


def test_an_entry_may_have_nothing_to_act_on(lockstep):
    said = lockstep("faults", "embed-scale-missing")
    assert said.code == 0
    assert said.out.endswith(
        "has nothing that this could be wrong in: plant it with --model MODEL\n"
    )


def test_another_model_can_be_named(lockstep):
    said = lockstep("faults", "embed-scale-missing", "--model", GEMMA, "--json", "-")
    shown = json.loads(said.out)
    assert shown["executable"] and shown["fix"] == fault("embed-scale-missing").fix
    [planted] = shown["planted"]
    assert planted["first"] == "model.embed_tokens" and planted["calls"] == 1
    assert planted["moved"] > 0.1


def test_a_class_that_is_left_out_says_why(lockstep):
    name = "gumbel-half-precision"
    assert lockstep("faults", name).out.startswith(f"{name}\n\nnot executable: ")
    said = json.loads(lockstep("faults", name, "--json", "-").out)
    assert said == {"id": name, "executable": False, "reason": left_out()[name]}


@sampled(1)
@pytest.mark.parametrize(
    ("id", "variants"), [("escaped-newline", 3), ("argmax-tie-break", 0), ("top-k-off-by-one", 2)]
)
def test_an_entry_around_the_model_is_made_with_the_demo(id, variants, lockstep):
    """The demo's logits have no ties, and a text without a written \\n has none to misread."""
    said = lockstep("faults", id, "--json", "-")
    shown = json.loads(said.out)
    assert said.code == 0 and shown["id"] == id and len(shown["planted"]) == variants
    if id == "escaped-newline":
        assert lockstep("faults", id).out.startswith(f"{id}  (")


def test_the_reference_makes_each_row_once(monkeypatch):
    """By hand: two passes for the prompt of each answer, one for each id that it feeds."""
    right, steps = ReferenceRows.step, []
    monkeypatch.setattr(ReferenceRows, "step", lambda *given: steps.append(1) or right(*given))
    tie = next(one for one in mistakes() if one.id == "argmax-tie-break")
    make(tie, reference.load(MODELS / "untied_float32"))
    assert len(steps) == len(SETTINGS) * (2 + STEPS - 1)


def test_an_id_that_is_not_there_is_refused(refuses):
    line = refuses("no class of bugs is called 'qk-norm-mising'", "faults", "qk-norm-mising")
    assert "near it: qk-norm-missing" in line
    assert "near it: gumbel-half-precision" in refuses("is called 'gumbel'", "faults", "gumbel")
    assert "`lockstep faults` lists them" in refuses("is called 'zzz'", "faults", "zzz")


def test_a_word_lists_what_is_about_it(lockstep):
    """By hand, of the catalogue: a part of ids, and a family, whose ids need not have its name."""
    said = lockstep("faults", "qk-norm")
    _, *rows, _, count = said.out.splitlines()
    assert said.code == 0 and all(" qk-norm-" in row for row in rows)
    assert count.startswith(f"{len(rows)} classes can be planted, 1 is known besides; ")
    found = json.loads(lockstep("faults", "activation", "--json", "-").out)["faults"]
    assert {"act-silu-vs-gelu", "gelu-quick"} <= {one["id"] for one in found}
    assert all(one["family"] == "activation" or "activation" in one["id"] for one in found)


@pytest.mark.parametrize("word", [(), ("rope",), ("sampling",)])
def test_the_text_counts_what_the_json_lists(lockstep, word):
    """By hand: the catalogue leaves out classes about both words."""
    found = json.loads(lockstep("faults", *word, "--json", "-").out)
    count = lockstep("faults", *word).out.splitlines()[-1]
    planted, besides = len(found["faults"]), len(found["left_out"])
    assert besides > 1
    assert count.startswith(f"{planted} classes can be planted, {besides} are known besides; ")


def test_no_word_is_no_list_of_all(refuses):
    assert "`lockstep faults` lists them" in refuses("is called ''", "faults", "")


@pytest.mark.parametrize("word", [(), ("qk-norm",)])
def test_a_list_is_planted_in_no_model(refuses, word):
    refuses("--model: plants one bug: give its whole ID", "faults", *word, "--model", GEMMA)


def test_a_model_that_is_not_there_is_refused(refuses):
    refuses("nowhere", "faults", "qk-norm-missing", "--model", "nowhere")


@pytest.mark.parametrize("folder", [DEMO, GEMMA, ROOT / "tests/witnesses/gpt2/original"])
def test_a_graph_that_is_read_so_is_the_model(folder):
    """By law: without any bug its logits are those of a forward pass, to the bit."""
    model = reference.load(folder)
    tokens = np.array([[7, 3, 3, 60, 1]])
    graph = record(model, tokens)
    run = Evaluator(graph, ops, np.dtype(np.float32), {}, reader(model))
    np.testing.assert_array_equal(run.target(graph.taps["logits"]), model.forward(tokens))


@pytest.mark.parametrize(
    ("id", "dtype"), [("norm-applied-twice", "float32"), ("norm-cast-before-weight", "bfloat16")]
)
def test_what_float32_does_not_show_is_planted_in_bfloat16(id, dtype):
    planted = plant(fault(id), reference.load(DEMO))[0]
    assert planted.dtype == dtype and planted.first == "model.layers.0.input_layernorm"


def test_logits_that_are_no_numbers():
    """By hand: the bits of bfloat16 read as float16 overflow somewhere in the demo."""
    [planted] = plant(fault("bf16-read-as-fp16"), reference.load(GEMMA))
    assert planted.first == "model.embed_tokens" and planted.calls > 20
