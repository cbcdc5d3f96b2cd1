"""Some tokens of a prompt, checked while both sides run: who is blamed, and who is not.

By law: planted bugs are where they were planted. By witness: the checkpoints of other makers, and a
port that is right stays so.
"""

from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.check import check
from lockstep.parity.diff import diff
from lockstep.parity.diffing.some_tokens import allowed
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.excerpts.oracle import BY_LENGTH, BY_TOKEN, OF_ALL
from lockstep.parity.explain import explain
from lockstep.parity.judging.result import Tap
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from tests.parity import builders
from tests.parity.builders import planted

WITNESSES = Path(__file__).parents[2] / "witnesses"
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3]
MODELS = ["gpt2/original", "qwen3_moe/separate", "gemma4/effective", "llama/llama_longrope",
          "llama/mistral_window"]  # fmt: skip


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return builders.checkpoint(tmp_path_factory.mktemp("dense"))


def wrong(result):
    return [tap.name for tap in result.taps if tap.status in ("diverged", "differs")]


@pytest.mark.parametrize("model", MODELS)
def test_a_right_port_is_at_parity_at_some_tokens(model):
    folder = WITNESSES / model
    port = fast.load(folder, backend="cpu", dtype="float32")
    rows = np.array([PROMPT, PROMPT[::-1]])
    result = check(reference.load(folder), port, rows, decode=1, lengths=[12, 5], at="1,last:2")
    assert wrong(result) == [] and {tap.status for tap in result.taps} == {"ok"}
    shapes = {tap.name: tap.shape for tap in result.taps}
    assert shapes["logits"][:2] == (2, 3) and shapes["step.1/logits"][:2] == (2, 1)
    open_ = [tap.name for tap in result.taps if tap.own_error is None]
    assert {name.rpartition(".")[2] for name in open_} == {"cached_keys", "cached_values"}


def late_scale(queries, keys, *, scale):
    return ops.attention_scores(queries, keys, scale=scale * 1.02)


def far_turn(x, positions, frequencies, *, factor):
    """Turn tokens 2 and 3 too far."""
    off = np.where((positions == 2) | (positions == 3), positions + 1, positions)
    return ops.rope(x, off, frequencies, factor=factor)


def test_an_attention_that_is_wrong_is_named_by_the_port_s_own_cache(dense):
    port = planted(dense, attention_scores=late_scale)
    result = check(reference.load(dense), port, builders.TOKENS, at="last:2")
    path = "model.layers.{}.self_attn.scores"
    assert wrong(result) == [path.format(0), path.format(1)]
    assert {tap.status for tap in result.taps if tap.name in wrong(result)} == {"diverged"}


def test_a_bug_in_tokens_that_are_not_compared_is_seen_in_what_the_cache_holds(dense):
    result = check(reference.load(dense), planted(dense, rope=far_turn), builders.TOKENS, at="6:8")
    assert wrong(result) == ["model.layers.0.self_attn.cached_keys"]
    assert result.first_divergence.status == "differs"


def test_a_bug_token_by_token_is_named_where_it_is(dense):
    port = planted(dense, silu=lambda x: ops.silu(x * 1.01))
    result = check(reference.load(dense), port, builders.TOKENS, at="last:1")
    assert wrong(result) == ["model.layers.0.mlp.act_fn", "model.layers.1.mlp.act_fn"]


@pytest.mark.parametrize("at, said", [("x", "'x', but should be last:8"), ("99", "99, but the")])
def test_what_names_no_tokens_is_refused_by_the_name_of_the_argument(dense, at, said):
    with pytest.raises(InputError, match=f"^at: {said}"):
        check(*builders.pair(dense), builders.TOKENS, at=at)


def test_only_the_taps_that_are_asked_for_are_compared(dense):
    pair = builders.pair(dense)
    result = check(*pair, builders.TOKENS, taps=["*.mlp.*", "logits"])
    assert {tap.name.rpartition(".")[2] for tap in result.taps} == {
        "gate_proj", "up_proj", "down_proj", "logits",
    }  # fmt: skip
    assert [name.rpartition(".")[2] for name in result.unmatched] == ["act_fn"] * 2


def test_taps_that_have_no_partner_are_no_parity(dense):
    with pytest.raises(InputError, match="nothing was compared"):
        check(*builders.pair(dense), builders.TOKENS, taps=["*.probs"])


def traced(folder, path, port=None, **options):
    trace_run(port or reference.load(folder), PROMPT[:8], path, globs=None, decode=0, **options)
    return path


def test_a_dump_without_caches_is_held_end_to_end_where_attention_is(dense, tmp_path):
    right = traced(dense, tmp_path / "right")
    bad = traced(dense, tmp_path / "bad", planted(dense, attention_scores=late_scale), at="last:2")
    result = diff(right, bad, model=reference.load(dense))
    first = result.first_divergence
    assert first.name == "model.layers.0.self_attn.scores" and first.status == "differs"
    assert "end to end" in first.place
    assert wrong(result) == [first.name]
    later = {tap.name: tap.status for tap in result.taps}
    assert later["model.layers.1.self_attn.scores"] == "not judged"
    assert later["model.layers.1.self_attn.o_proj"] == "inherited"


def test_a_bug_of_one_token_that_is_not_in_the_dump_is_no_own_error_of_another(dense, tmp_path):
    """Its keys reach the others: what attention makes of them is wrong, and nothing else is."""
    right = traced(dense, tmp_path / "right")
    bad = traced(dense, tmp_path / "bad", planted(dense, rope=far_turn), at="6:8")
    result = diff(right, bad, model=reference.load(dense))
    assert wrong(result) == ["model.layers.0.self_attn.scores"]
    assert not any(tap.status == "diverged" for tap in result.taps)


def test_a_dump_with_its_caches_has_its_attention_computed_again(dense, tmp_path):
    right, some = traced(dense, tmp_path / "right"), tmp_path / "some"
    globs = ["*", "*.cached_*"]
    trace_run(planted(dense, attention_scores=late_scale), PROMPT[:8], some, globs=globs,
              decode=0, at="last:2")  # fmt: skip
    result = diff(right, some, model=reference.load(dense))
    assert wrong(result)[0] == "model.layers.0.self_attn.scores"
    assert result.first_divergence.status == "diverged"


@pytest.mark.parametrize("at", ["first:3", "last:3"])
def test_a_whole_dump_is_cut_to_what_the_other_has(dense, tmp_path, at):
    """By loop: the same figures as of two dumps of which both have these tokens alone."""
    _, port = builders.pair(dense)
    sides = [traced(dense, tmp_path / "a"), traced(dense, tmp_path / "b", port, at=at)]
    both = [traced(dense, tmp_path / "c", at=at), sides[1]]
    found, wanted = diff(*sides), diff(*both)
    assert [tap.to_json() for tap in found.taps] == [tap.to_json() for tap in wanted.taps]
    assert found.compared == 2 * 16 + 4 and any("3 of 8 tokens" in line for line in found.notes)
    back = diff(*sides[::-1])
    assert [tap.name for tap in back.taps] and back.verdict == "parity"


def test_sides_that_share_no_token_are_refused(dense, tmp_path):
    left, right = (traced(dense, tmp_path / at[:4], at=at) for at in ("first:2", "last:2"))
    with pytest.raises(InputError, match="no position of the prompt is also in"):
        diff(left, right)


def test_the_first_tokens_are_judged_as_a_shorter_prompt(dense, tmp_path):
    right = traced(dense, tmp_path / "right")
    bad = traced(dense, tmp_path / "bad", planted(dense, attention_scores=late_scale), at="first:3")
    result = diff(right, bad, model=reference.load(dense))
    assert wrong(result) == [f"model.layers.{layer}.self_attn.scores" for layer in (0, 1)]
    assert all(tap.own_error is not None for tap in result.taps)


@pytest.mark.parametrize("said", ["[3, 2]", "[8]", "[]", "x", "[[1]]", "[true]"])
def test_positions_that_are_nonsense_are_refused(dense, tmp_path, said):
    path = traced(dense, tmp_path / "a", at="last:1")
    dump = open_dump(path)
    dump.about["positions"] = said
    with pytest.raises(InputError, match="positions"):
        diff(tmp_path / "a", dump)


def test_every_operation_is_known_to_be_of_single_tokens_or_of_many():
    of_many = {*OF_ALL, "causal_mask", "concatenate", "softmax", "take_rows"}
    assert of_many | BY_TOKEN | BY_LENGTH == {*ops.__all__}
    assert not of_many & BY_TOKEN


def test_explain_takes_the_first_tokens_as_a_prompt_and_others_as_some(dense, tmp_path):
    model = reference.load(dense)
    port = planted(dense, silu=ops.gelu_tanh)
    first = traced(dense, tmp_path / "first", port, at="first:4")
    found = explain(model, first)
    assert [one.id for one in found.faults] == ["act-silu-vs-gelu"]
    assert any("the first 4 of 8 tokens" in line for line in found.conventions)
    found = explain(model, traced(dense, tmp_path / "last", port, at="last:4"))
    assert [one.id for one in found.faults] == ["act-silu-vs-gelu"]
    assert "of the prompt these are judged: 4 of 8 tokens: 4..7" in found.conventions


@pytest.fixture
def in_parts(monkeypatch):
    """Feed the prompt three tokens at a time: 4 heads, 8 keys of 4 bytes."""
    monkeypatch.setattr("lockstep.parity.excerpts.whole_run.SCORES", 3 * 4 * 8 * 4)


@pytest.mark.parametrize("at", ["last:4", "0,2:4,7", "1"])
def test_a_long_prompt_is_fed_in_parts(dense, in_parts, at):
    """By law: the parts are one run, and bugs are where they were."""
    right = reference.load(dense)
    assert check(right, builders.pair(dense)[1], builders.TOKENS, at=at, decode=1).compared == 80
    bad = planted(dense, attention_scores=late_scale)
    result = check(right, bad, builders.TOKENS, at=at)
    assert "scores" not in "".join(tap.name for tap in result.taps)  # of some keys, in parts
    contexts = [f"model.layers.{layer}.self_attn.context" for layer in (0, 1)]
    assert wrong(result) == ([] if at == "0" else contexts)


def test_a_trace_in_parts_has_what_one_in_a_piece_has(dense, tmp_path, monkeypatch):
    """By loop: the same numbers, to rounding, and no taps over keys."""
    whole = open_dump(traced(dense, tmp_path / "whole", at="1:3,6"))
    monkeypatch.setattr("lockstep.parity.excerpts.whole_run.SCORES", 3 * 4 * 8 * 4)
    parts = open_dump(traced(dense, tmp_path / "parts", at="1:3,6"))
    gone = {name.rpartition(".")[2] for name in whole.shapes.keys() - parts.shapes.keys()}
    assert gone == {"scores", "probs"}
    for name in parts.shapes:
        np.testing.assert_allclose(parts.read(name), whole.read(name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "dtype, errors, limit",
    [("float32", [], 64), ("float32", [20], 80), ("float32", [200], 512), ("bfloat16", [9], 16)],
)
def test_what_rounding_may_add_up_to(dtype, errors, limit):
    """By hand, in steps of the last bit: four times what was right before, within bounds."""
    step = {"float32": 2.0**-23, "bfloat16": 2.0**-7}[dtype]
    before = [Tap("x", None, (1,), "ok", rms_rel=step * error) for error in errors]
    before.append(Tap("y", None, (1,), "diverged", rms_rel=1.0))
    assert allowed(dtype, before) == pytest.approx(limit * step)
