"""Dumps of some tokens of a prompt, explained: what is named, what is left open, and what is said.

By law: bugs of the catalogue are named where they were planted, from any tokens; a right port is
clean; a bug of tokens that are not in the dump is never given the name of one of attention.
"""

import json

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.excerpts.excerpt import excerpt_of
from lockstep.parity.explain import explain
from lockstep.parity.explaining.excerpts import text
from lockstep.parity.faults import catalogue
from lockstep.reference import ops
from tests.parity import builders
from tests.parity.builders import planted
from tests.parity.explaining import ports

MISTRAL, MOE, GEMMA = "llama/mistral_window", "qwen3_moe/separate", "gemma4/effective"
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return builders.checkpoint(tmp_path_factory.mktemp("dense"))


def explained(name, bugs=(), at="5,last:3", faults=None, **options):
    """Explain what a port with bugs has of some of 20 tokens."""
    taps, excerpt = ports.port(name, bugs, **options), excerpt_of(at, [20])
    some = {tap: excerpt.cut(tap, value) for tap, value in taps.items()}
    dump = ports.dumped(some, name, positions=json.dumps(excerpt.rows[0]))
    return explain(ports.model_of(name), dump, faults=faults)


def traced(dense, path, port, *, decode=0, globs=None, at="last:2"):
    """Explain what a port wrote, by one bug alone: where it is not that, the search is short."""
    trace_run(port, PROMPT, path, globs=globs, decode=decode, at=at)
    faults = [one for one in catalogue() if one.id == "act-silu-vs-gelu"]
    return explain(reference.load(dense), path, faults=faults)


def notes(found):
    return [line for line in found.conventions if "not decided" in line]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "level"),
    [(MISTRAL, "layers"), (MOE, "modules"), (GEMMA, "modules"), ("llama/qwen2_yarn", "modules")],
)
def test_a_right_port_is_clean(name, level, dtype):
    found = explained(name, dtype=dtype, level=level, faults=[])
    assert found.verdict == "clean" and not notes(found)


@pytest.mark.parametrize(
    ("name", "bug", "level"),
    [
        (MISTRAL, "layernorm-for-rmsnorm", "modules"),
        (MISTRAL, "rope-pairing-swapped", "modules"),
        (MISTRAL, "rope-pairing-swapped", "layers"),
        (MOE, "qk-norm-rope-order", "modules"),
        (GEMMA, "embed-scale-missing", "modules"),
        (GEMMA, "attn-scale-should-be-one", "modules"),
    ],
)
def test_bugs_are_named_from_some_tokens(name, bug, level):
    assert ports.ids(explained(name, [bug], level=level)) == {bug}


def test_bugs_of_both_kinds_are_named_and_what_is_behind_them_is_left_open():
    bugs = ["rope-pairing-swapped", "layernorm-for-rmsnorm"]
    found = explained(MISTRAL, bugs, where=lambda call: call.place != "input_layernorm")
    assert ports.ids(found) == {*bugs} and found.unexplained == []
    (line,) = notes(found)
    assert "model.layers.1.self_attn.o_proj" in line and "is wrong before it" in line


def far_turn(x, positions, frequencies, *, factor):
    """Turn tokens 2 and 3 too far."""
    off = np.where((positions == 2) | (positions == 3), positions + 1, positions)
    return ops.rope(x, off, frequencies, factor=factor)


def test_a_bug_of_other_tokens_gets_no_name_of_attention(dense, tmp_path):
    found = traced(dense, tmp_path / "x", planted(dense, rope=far_turn))
    assert found.faults == [] and [one.tap for one in found.unexplained] == [
        "model.layers.0.self_attn.context"
    ]
    assert found.unexplained[0].shape.endswith(text.DOUBT)


def test_a_bug_of_other_tokens_is_seen_in_the_caches_of_all(dense, tmp_path):
    port = planted(dense, rope=far_turn)
    found = traced(dense, tmp_path / "x", port, globs=["*", "*.cached_*"])
    assert [one.tap for one in found.unexplained] == ["model.layers.0.self_attn.k_rope"]


def late_scale(queries, keys, *, scale):
    return ops.attention_scores(queries, keys, scale=scale * 1.02)


def test_with_the_caches_attention_is_judged_behind_what_is_wrong(dense, tmp_path):
    port = planted(dense, silu=ops.gelu_tanh, attention_scores=late_scale)
    found = traced(dense, tmp_path / "x", port, globs=["*", "*.cached_*"])
    path = "model.layers.{}.self_attn.context"
    assert ports.ids(found) == {"act-silu-vs-gelu"}
    assert [one.tap for one in found.unexplained] == [path.format(0), path.format(1)]
    without = traced(dense, tmp_path / "y", port)
    assert [one.tap for one in without.unexplained] == [path.format(0)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_are_judged_with_the_tokens_before_them(dense, tmp_path, dtype):
    port = fast.load(dense, backend="cpu", dtype=dtype)
    found = traced(dense, tmp_path / "x", port, decode=2, at="4:6")
    assert (found.verdict, found.steps) == ("clean", 2) and not notes(found)


def test_a_batch_is_judged_row_by_row(dense, tmp_path):
    port = fast.load(dense, backend="cpu", dtype="float32")
    rows = [PROMPT, PROMPT[:5]]
    trace_run(port, rows, tmp_path / "x", globs=None, decode=1, at="1,last:2")
    assert explain(reference.load(dense), tmp_path / "x").verdict == "clean"
    bad = planted(dense, silu=ops.gelu_tanh)
    trace_run(bad, rows, tmp_path / "y", globs=None, decode=0, at="1,last:2")
    assert ports.ids(explain(reference.load(dense), tmp_path / "y")) == {"act-silu-vs-gelu"}


def test_a_prompt_that_is_too_long_leaves_attention_open(dense, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LARGEST", 8 * 4 * 11 * 11)
    found = traced(dense, tmp_path / "x", planted(dense, silu=ops.gelu_tanh))
    assert ports.ids(found) == {"act-silu-vs-gelu"}
    (line,) = notes(found)
    assert "over all 12 tokens" in line


def test_what_is_off_behind_a_router_is_left_open():
    """Another token's experts may be others by rounding alone."""
    bug = {"bugs": ["attn-scale-should-be-one"], "where": lambda call: call.layer == 1}
    found = explained("gemma4/sparse", faults=[], **bug)
    assert found.unexplained == [] and "other experts" in notes(found)[0]
