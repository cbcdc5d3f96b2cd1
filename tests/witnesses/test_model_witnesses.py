"""Whole models against what transformers computed in float32. By witness: README.md beside this."""

import numpy as np
import pytest

from tests.witnesses.conftest import TAP, TAPPED
from tests.witnesses.judge import HALF_BARS, TIE, error, rms_error
from tests.witnesses.runners import EDITS, Runner, redeclared

# Taps that a fast engine hides because it fuses them.
FUSED = "mlp.act_fn"
HALVES = ("bfloat16", "float16")


def test_logits(witness, runner, judge):
    tokens, expected = witness.expected["tokens"], witness.expected["logits"]
    judge(runner.name, witness.name, runner.logits(tokens), expected)


def test_float64_logits(witness, judge):
    runner = Runner("float64", witness.folder)
    found = runner.exact(witness.expected["tokens"])
    assert found.dtype == np.float64
    judge(runner.name, witness.name, found, witness.expected["logits"])


@pytest.mark.parametrize("witness", TAPPED, indirect=True)
def test_every_module_gives_what_its_hook_saw(witness, runner, judge):
    hooked = {k.removeprefix(TAP): v for k, v in witness.expected.items() if k.startswith(TAP)}
    found = runner.taps(witness.expected["tokens"][:1])
    hidden = {name for name in hooked if name.endswith(FUSED) and runner.name != "reference"}
    for name in hooked.keys() - hidden:
        last = found[name][:1, -hooked[name].shape[1] :]
        judge(runner.name, "modules", last, hooked[name])
    assert len(hooked) > 11 * len(runner.model.config.layer_types)


def test_greedy_continuation(witness, runner):
    expected = witness.expected
    assert expected["margin"] > TIE
    found, _ = runner.greedy(expected["tokens"], expected["greedy"].shape[1])
    np.testing.assert_array_equal(found, expected["greedy"])


def test_prompts_of_unequal_length_go_on_as_if_alone(witness, runner, judge):
    expected = witness.expected
    lengths, count = expected["unequal_lengths"], expected["unequal_greedy"].shape[1]
    ids, seen = runner.greedy(expected["tokens"], count, lengths=lengths)
    np.testing.assert_array_equal(ids, expected["unequal_greedy"])
    kept = seen[:, expected["unequal_steps"]]
    judge(runner.name, "unequal prompts", kept, expected["unequal_logits"])


def test_padding_changes_no_real_token(witness, runner, judge):
    tokens, lengths = witness.expected["tokens"], witness.expected["unequal_lengths"]
    found = runner.logits(tokens, lengths=lengths)
    for row, length in enumerate(lengths):
        expected = witness.expected["logits"][row, :length]
        judge(runner.name, "padded prompts", found[row, :length], expected)


@pytest.mark.parametrize("sizes", ["one by one", "chunks", "uneven"])
def test_cached_chunks_equal_the_prefill(witness, runner, judge, sizes):
    tokens = witness.expected["tokens"]
    length = tokens.shape[1]
    plan = {"one by one": [1] * length, "chunks": [8] * 5, "uneven": [1, 17, length - 19, 1]}
    found = runner.chunked(tokens, plan[sizes])
    judge(runner.name, f"cached, {sizes}", found, witness.expected["logits"])


def test_last_only(witness, runner, judge):
    tokens, expected = witness.expected["tokens"], witness.expected["logits"]
    judge(runner.name, "last only", runner.logits(tokens, last_only=True), expected[:, -1:])
    lengths = witness.expected["unequal_lengths"]
    last = np.stack([expected[row, n - 1 : n] for row, n in enumerate(lengths)])
    found = runner.logits(tokens, lengths=lengths, last_only=True)
    judge(runner.name, "last only", found, last)


def test_positions_given_as_they_would_be_counted(witness, runner, judge):
    tokens = witness.expected["tokens"]
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    found = runner.logits(tokens, positions=positions)
    judge(runner.name, "positions", found, witness.expected["logits"])


def test_positions_with_gaps(tied, engine, judge):
    expected = tied.expected["logits_at_positions"]
    tokens, positions = tied.expected["tokens"], tied.expected["positions"]
    found = Runner(engine, tied.folder).logits(tokens, positions=positions)
    judge(engine, "positions with gaps", found, expected)
    # The gaps matter, or the comparison above would prove nothing.
    assert error(tied.expected["logits"], expected) > TIE


def test_trace_changes_no_bit(witness, runner):
    tokens = witness.expected["tokens"]
    seen = []
    traced = runner.exact(tokens, trace=lambda name, value: seen.append(runner.host(value)))
    assert len(seen) > len(runner.model.config.layer_types)
    assert traced.tobytes() == runner.exact(tokens).tobytes()


def test_no_tokens(witness, runner):
    vocabulary = runner.model.config.vocab_size
    assert runner.exact(np.zeros((2, 0), np.int64)).shape == (2, 0, vocabulary)


@pytest.mark.parametrize("edit", EDITS)
def test_packing_is_read_off_the_shapes(mixed, engine, judge, tmp_path, edit):
    runner = Runner(engine, redeclared(mixed.folder, tmp_path / "model", EDITS[edit]))
    assert any("inferred" in warning for warning in runner.model.checkpoint.warnings)
    found = runner.logits(mixed.expected["tokens"])
    judge(engine, f"mixed, {edit}", found, mixed.expected["logits"])


def test_mixed_witness_has_every_packing(mixed):
    checkpoint = Runner("reference", mixed.folder).model.checkpoint
    stored = [checkpoint.stored(name) for name in checkpoint.names]
    found = {(one.bits, one.group_size) for one in stored if one.bits is not None}
    assert {bits for bits, _ in found} == {2, 3, 4, 5, 6, 8}
    assert {group_size for _, group_size in found} == {32, 64, 128}
    assert len(found) > 15


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_as_near_to_float32_as_transformers_is(tied, engine, dtype):
    exact, theirs = tied.expected["logits"], tied.expected[f"logits_{dtype}"]
    found = Runner(engine, tied.folder, dtype).exact(tied.expected["tokens"])
    assert found.dtype.name == dtype
    low, high = HALF_BARS
    assert low <= rms_error(found, exact) / rms_error(theirs, exact) <= high
