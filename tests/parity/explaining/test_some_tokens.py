"""Dumps of some tokens of a prompt, explained: what is named, what is left open, and what is said.

By law: bugs of the catalogue are named where they were planted, from any tokens; a right port is
clean; a bug of tokens that are not in the dump is never given the name of one of attention.
"""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.excerpts.excerpt import excerpt_of
from lockstep.parity.explain import explain
from lockstep.parity.explaining import dumped
from lockstep.parity.explaining.excerpts import text
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import batched, by_queries
from lockstep.parity.judging.judge import Judgement
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from tests.parity import builders
from tests.parity.builders import planted
from tests.parity.explaining import ports
from tests.parity.explaining.ports import some_of
from tests.sampled import sampled

MISTRAL, MOE, GEMMA = "llama/mistral_window", "qwen3_moe/separate", "gemma4/effective"
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return builders.checkpoint(tmp_path_factory.mktemp("dense"))


def explained(name, bugs=(), faults=None, **options):
    """Explain what a port with bugs has of some of 20 tokens."""
    return explain(ports.model_of(name), some_of(name, bugs, **options), faults=faults)


def traced(dense, path, port, *, decode=0, globs=None, at="last:2"):
    """Explain what a port wrote, by one bug alone: where it is not that, the search is short."""
    trace_run(port, PROMPT, path, globs=globs, decode=decode, at=at)
    faults = [one for one in catalogue() if one.id == "act-silu-vs-gelu"]
    return explain(reference.load(dense), path, faults=faults)


def notes(found):
    return [line for line in found.conventions if "not decided" in line]


@sampled(2, "gemma4/effective-modules-bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "level"),
    [(MISTRAL, "layers"), (MOE, "modules"), (GEMMA, "modules"), ("llama/qwen2_yarn", "modules")],
)
def test_a_right_port_is_clean(name, level, dtype):
    found = explained(name, dtype=dtype, level=level, faults=[])
    assert found.verdict == "clean" and not notes(found)


@sampled(1, "gemma4/effective-embed-scale-missing-modules")
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


@pytest.fixture
def cases(monkeypatch):
    """The whole texts that are judged."""
    found, too_long = [], text.too_long
    module = sys.modules["lockstep.parity.explain"]
    monkeypatch.setattr(module, "too_long", lambda case: found.append(case) or too_long(case))
    return found


def test_what_is_not_decided_is_not_judged(cases):
    found = explained(MISTRAL, ["rope-pairing-swapped"], faults=[])
    (case,) = cases
    assert case.hidden and case.judged and not case.hidden.keys() & case.judged.keys()
    assert found.not_judged == sorted(case.tap(piece) for piece, _ in case.hidden.values())
    assert len(found.not_judged) + len(found.taps) == found.compared + len(case.hidden)


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


@pytest.fixture
def long(monkeypatch):
    """Let 20 tokens be many: attention goes by a few queries of each head, and of few tokens.

    Nothing so large goes into a batch of bugs.
    """
    monkeypatch.setattr(batched, "BYTES", 0)
    monkeypatch.setattr(by_queries, "LARGE", 0)
    monkeypatch.setattr(by_queries, "BLOCK", 4096)


@sampled(2, "modules-gemma4/effective")
@pytest.mark.parametrize("name", [MISTRAL, MOE, GEMMA])
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_right_port_of_a_long_prompt_is_clean(long, name, level):
    found = explained(name, level=level, faults=[])
    assert found.verdict == "clean" and not notes(found)


@sampled(1, "llama/mistral_window-attn-scale-missing")
@pytest.mark.parametrize(
    ("name", "bug"),
    [
        (MISTRAL, "attn-scale-missing"),
        (MISTRAL, "mask-causal-missing"),
        (MISTRAL, "layernorm-for-rmsnorm"),
        (MOE, "qk-norm-rope-order"),
        (GEMMA, "attn-scale-should-be-one"),
    ],
)
def test_bugs_are_named_from_some_tokens_of_a_long_prompt(long, name, bug):
    assert ports.ids(explained(name, [bug], level="modules")) == {bug}


def test_of_a_long_prompt_attention_is_made_for_the_tokens_in_the_dump(long, cases):
    """By law: of the last layer's others nobody takes what attention makes."""
    explained(MISTRAL, faults=[])
    (case,) = cases
    contexts = [n for tap, n in case.graph.taps.items() if tap.endswith(".context")]
    (last,) = case.graph.token_axes[contexts[-1]]
    for run in (case.trial.centre(None), *case.trial.ways(None)):
        rows = np.moveaxis(run.target(contexts[-1]), last, 0)
        assert [*np.flatnonzero(rows.any(axis=(1, 2)))] == case.trial.seen == [5, 17, 18, 19]


@pytest.mark.parametrize("globs", [["*.q_rope"], ["*.q_rope", "logits"], ["logits"], ["*"]])
def test_of_a_long_prompt_the_caches_are_judged_for_all_tokens(long, dense, tmp_path, globs):
    """By law: a right port is clean, whatever attention is made for."""
    right = fast.load(dense, backend="cpu", dtype="float32")
    found = traced(dense, tmp_path / "x", right, globs=[*globs, "*.cached_*"])
    assert found.verdict == "clean" and not notes(found)
    found = traced(dense, tmp_path / "y", planted(dense, rope=far_turn), globs=["*.cached_*"])
    (one,) = found.unexplained
    assert one.tap.endswith("model.layers.0.self_attn.cached_keys")


@sampled(0)
@pytest.mark.parametrize("name", [MISTRAL, MOE])
def test_a_wrong_matrix_that_would_be_too_large_is_not_tried(long, monkeypatch, name):
    """By hand: of 20 tokens they are; another option alone goes by queries all the same."""
    bugs = "attn-scale-missing", "softmax-wrong-axis"
    dumps = [some_of(name, [bug]) for bug in bugs]
    monkeypatch.setattr(by_queries, "MOST", 8 * 19 * 19)
    known = [one for one in catalogue() if one.id in bugs]
    first, second = (explain(ports.model_of(name), dump, faults=known) for dump in dumps)
    assert ports.ids(first) == {bugs[0]}
    assert (second.verdict, second.faults) == ("unknown", []) and second.unexplained


def test_a_prompt_that_is_too_long_leaves_attention_open(dense, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LARGEST", 8 * 11)
    found = traced(dense, tmp_path / "x", planted(dense, silu=ops.gelu_tanh))
    assert ports.ids(found) == {"act-silu-vs-gelu"}
    (line,) = notes(found)
    assert "over all 12 tokens" in line
    assert line.startswith("2 taps are not decided, such as ")
    parts = ("context", "probs", "scores")  # the last two are over the keys of all tokens
    taps = [f"model.layers.{layer}.self_attn.{part}" for layer in range(2) for part in parts]
    assert found.not_judged == taps


def test_what_is_over_the_keys_of_all_tokens_is_not_judged():
    """By hand: scores of all tokens, and keys in a cache of two slots."""
    dump = some_of(MISTRAL)
    more = {"model.layers.0.self_attn.scores": np.ones((1, 4, 4, 20), np.float32),
            "model.layers.1.self_attn.cached_keys": np.ones((1, 2, 2, 16), np.float32)}  # fmt: skip
    taps = {tap: dump.read(tap) for tap in dump.shapes} | more
    dump = replace(dump, shapes={tap: taps[tap].shape for tap in taps}, read=taps.__getitem__)
    found = explain(ports.model_of(MISTRAL), dump, faults=[])
    assert (found.verdict, found.not_judged) == ("clean", [*more])


def last_two_of(names, *, logits=1.0):
    """Explain some taps of the last two of 20 tokens, with larger logits."""
    taps, excerpt = ports.port(MISTRAL), excerpt_of("last:2", [20])
    some = {tap: excerpt.cut(tap, taps[tap]) for tap in taps if tap in names}
    some |= {"lm_head": some["logits"], "logits": some["logits"] * np.float32(logits)}
    dump = ports.dumped(some, MISTRAL, positions=json.dumps(excerpt.rows[0]))
    return explain(ports.model_of(MISTRAL), dump, faults=[])


@pytest.mark.parametrize("names", [["logits"], ["model.norm", "logits"]])
def test_a_value_that_is_there_twice_is_judged_twice(names, monkeypatch):
    assert last_two_of(names).verdict == "clean"
    found = last_two_of(names, logits=1.5)
    assert found.verdict == "unknown" and len(found.unexplained) == 1
    monkeypatch.setattr(text, "LARGEST", 1)
    found = last_two_of(names, logits=1.5)
    assert found.verdict == "unknown" and "the same value" in found.unexplained[0].shape


def test_tokens_beside_a_batch_are_refused(dense, tmp_path):
    port = fast.load(dense, backend="cpu", dtype="float32")
    trace_run(port, [PROMPT, PROMPT[:5]], tmp_path / "x", globs=None, decode=0, at="1,last:2")
    with pytest.raises(InputError, match="leave --tokens out"):
        explain(reference.load(dense), tmp_path / "x", tokens=PROMPT)


def without_ids(path):
    """Return a dump that says no ids at all."""
    dump = open_dump(path)
    ids = ("tokens", "decoded", "prompt")
    return replace(dump, about={key: x for key, x in dump.about.items() if key not in ids})


def test_tokens_may_hold_what_steps_were_fed(dense, tmp_path):
    port, known = planted(dense, silu=ops.gelu_tanh), reference.load(dense)
    faults = [one for one in catalogue() if one.id == "act-silu-vs-gelu"]
    found = []
    for at in ("4:6", None):
        trace_run(port, PROMPT, path := tmp_path / f"{at}", globs=["*.mlp.*"], decode=2, at=at)
        fed = [*PROMPT, *open_dump(path).decoded[:2]]
        found.append(explain(known, without_ids(path), tokens=fed, faults=faults))
    some, whole = found
    assert (ports.ids(some), some.steps) == (ports.ids(whole), whole.steps)
    assert (ports.ids(some), some.steps) == ({"act-silu-vs-gelu"}, 2)
    assert "of the prompt these are judged: 2 of 12 tokens: 4..5" in some.conventions


@pytest.mark.parametrize("decode", [0, 2])
def test_caches_alone_are_judged(dense, tmp_path, decode):
    globs = ["*.cached_*"]
    right = fast.load(dense, backend="cpu", dtype="float32")
    found = traced(dense, tmp_path / "x", right, globs=globs, decode=decode)
    assert (found.verdict, found.compared) == ("clean", 4)
    found = traced(dense, tmp_path / "y", planted(dense, rope=far_turn), globs=globs, decode=decode)
    (one,) = found.unexplained
    assert one.tap.endswith("model.layers.0.self_attn.cached_keys")


@pytest.mark.parametrize("axes", ["bgsd->bsgd", "bgsd->gsd", "bgsd->sgd"])
def test_caches_may_lie_otherwise(dense, tmp_path, axes):
    """Heads behind tokens, and no axis of the batch: as in a whole dump."""
    for port, names in (
        (fast.load(dense, backend="cpu", dtype="float32"), []),
        (planted(dense, rope=far_turn), ["model.layers.0.self_attn.cached_keys"]),
    ):
        trace_run(port, PROMPT, tmp_path / "x", globs=["*.cached_*"], decode=0, at="last:2")
        dump = open_dump(tmp_path / "x")
        taps = {name: np.einsum(axes, dump.read(name)) for name in dump.shapes}
        shapes = {name: one.shape for name, one in taps.items()}
        dump = replace(dump, shapes=shapes, read=taps.__getitem__, parted=None)
        found = explain(reference.load(dense), dump, faults=[])
        assert [one.tap for one in found.unexplained] == names
        assert found.compared == (2 if names else 4)
        assert any("heads behind tokens" in line for line in found.conventions) == ("sg" in axes)


def test_of_caches_little_is_kept(dense, tmp_path, monkeypatch, cases):
    monkeypatch.setattr(dumped, "KEPT", 0)
    port = fast.load(dense, backend="cpu", dtype="float32")
    found = traced(dense, tmp_path / "x", port, globs=["*.self_attn.*", "*.cached_*"])
    caches = cases[0].some.of_all
    assert found.verdict == "clean" and len(caches) == 4
    assert not caches.own and len(caches.kept) == 1


def test_caches_of_fewer_slots_are_left_out(dense, tmp_path):
    port = fast.load(dense, backend="cpu", dtype="float32")
    trace_run(port, PROMPT, tmp_path / "x", globs=["*.cached_*"], decode=0, at="last:2")
    dump = open_dump(tmp_path / "x")
    taps = {name: dump.read(name)[:, :, 1:] for name in dump.shapes}
    shapes = {name: one.shape for name, one in taps.items()}
    dump = replace(dump, shapes=shapes, read=taps.__getitem__, parted=None)
    with pytest.raises(InputError, match="nothing was compared"):
        explain(reference.load(dense), dump, faults=[])


def test_behind_a_piece_that_turned_out_to_be_right_attention_is_judged(monkeypatch):
    """By hand: nothing is wrong before any piece, once all that were are cleared."""
    before = []

    def clears(self, *given, **options):
        self.judged[frozenset()] = Judgement(0.5, 1.0, 0.5, 0.5, 0.5, True, None)
        return []

    monkeypatch.setattr(Search, "explanations", clears)
    decides = lambda self, piece: bool(before.append(len(self.some.wrong)))  # noqa: E731
    monkeypatch.setattr(text.TextCase, "decides", decides)
    found = explained(MISTRAL, ["layernorm-for-rmsnorm"])
    assert before and not any(before) and found.verdict == "clean"
