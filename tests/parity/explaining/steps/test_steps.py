"""Dumps of a prompt and of steps after it: read as one text, and judged as one.

By witness: `tests/witnesses/steps`, decoded by transformers, right and with bugs of caches. By law:
cut out of one long prefill, which is what a right cache gives. By hand: the words on tokens.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.explain import explain
from lockstep.parity.explaining.said.report import report
from lockstep.parity.explaining.steps.whereabouts import in_words, place_of
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator, record
from lockstep.parity.noise import ways
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import WITNESSES, ids, is_of, model_of, rewrite_of
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

MISTRAL = "llama/mistral_window"
TRANSFORMERS = WITNESSES / "steps"
NAMED = {  # file: what is in it, where it is seen
    "positions_at_0": ("rope-pos-frozen-on-decode", "at 0", "from step 1 on"),
    "never_stored": ("kv-never-stored", None, "from step 1 on"),
    "ring_as_flat": ("kv-ring-sliced-as-flat",
                     "the prompt's last W in order, later tokens by p mod W", "from step 1 on"),
    "ring_too_small": ("kv-ring-size-off-by-one", "one key less", "from step 1 on"),
    "turned_twice": ("rope-on-cached-keys-again", "once more", "from step 1 on"),
    "heads_of_queries": ("kv-head-count-in-cache",
                         "query heads read their own number, and zeros beyond", "from step 1 on"),
    "eight_bits": ("kv-int8-noise", "8 bits, a scale for each head of a token", "from step 1 on"),
}  # fmt: skip


def test_a_right_decode_of_transformers_is_clean():
    found = explain(model_of(MISTRAL), TRANSFORMERS / "right.safetensors")
    assert (found.verdict, found.conventions, found.unmatched) == ("clean", [], [])
    assert (found.compared, found.steps) == (7, 4)


@sampled(1, "never_stored")
@pytest.mark.parametrize("file", NAMED)
def test_a_bug_of_a_cache_in_transformers_is_named(file):
    id, variant, where = NAMED[file]
    found = explain(model_of(MISTRAL), TRANSFORMERS / f"{file}.safetensors")
    assert [(one.id, one.variant, one.where) for one in found.faults] == [(id, variant, where)]
    assert not found.unexplained and found.faults[0].layers == [0, 1]


def test_every_witness_is_looked_at():
    names = {path.stem for path in TRANSFORMERS.glob("*.safetensors")}
    assert names == {"right", *NAMED}


def decoded(name, lengths, bugs=(), *, dtype="float32", level="modules", said=True, **about):
    """Return a dump of so many tokens in each pass, cut out of one long prefill with bugs."""
    model, kind = model_of(name), dtype_named(dtype)
    ends = np.cumsum(lengths).tolist()
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (1, ends[-1]))
    graph = record(model, tokens, steps=tuple(ends[:-1]))
    run = Evaluator(graph, ways(kind)[1][0], kind, {}, Tensors(model.checkpoint))
    calls = {call.number: call for call in graph.calls}
    for bug in bugs:
        rewrite = rewrite_of(bug) if isinstance(bug, str) else bug
        calls = {n: rewrite(call, graph) or call for n, call in calls.items()}
    changed = {n: call for n, call in calls.items() if call is not graph.calls[n]}
    assert bool(changed) == bool(bugs), "the bugs are not in this model"
    taps = {}
    for tap, number in graph.taps.items():
        if is_of(level, tap):
            value = run.target(number, changed)
            taps |= dict(cut(tap, value, graph.token_axes[number], [0, *ends]))
    ids = tokens[0].tolist()
    if said:
        about |= {"tokens": json.dumps(ids[: lengths[0]]), "decoded": json.dumps(ids[lengths[0] :])}
    if set(lengths[1:]) > {1}:
        about["step_lengths"] = json.dumps(list(lengths[1:]))
    shapes = {tap: value.shape for tap, value in taps.items()}
    return Dump(Path("port"), shapes, taps.__getitem__, about), ids


def cut(tap, value, axes, ends):
    """Yield what each pass computes of a value: its own tokens, and the keys up to then."""
    for number, (begin, end) in enumerate(pairwise(ends)):
        part = np.take(value, range(begin, end), axis=axes[0])
        for axis in axes[1:]:
            part = np.take(part, range(end), axis=axis)
        yield f"step.{number}/{tap}" if number else tap, part


def explained(name, *args, **options):
    return explain(model_of(name), decoded(name, *args, **options)[0])


@sampled(5, "llama/mistral_window-logits-bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("level", ["modules", "layers", "logits", "all"])
@pytest.mark.parametrize("name", [MISTRAL, "gpt2/variant"])
def test_a_right_decode_is_clean_at_every_level(name, level, dtype, monkeypatch):
    if level == "all":
        monkeypatch.setitem(decoded.__globals__, "is_of", lambda level, tap: True)
    found = explained(name, (14, 1, 1, 1), dtype=dtype, level=level)
    assert (found.verdict, found.unexplained, found.steps) == ("clean", [], 3)
    assert found.dtype == dtype and found.compared > 0


@long
@pytest.mark.parametrize("name", ["gemma4/effective", "gemma4/sparse", "qwen3_moe/separate"])
def test_other_architectures_are_clean(name):
    assert explained(name, (14, 5, 1, 1)).verdict == "clean"


def traced(name, lengths):
    """Return what the reference itself computes from its cache, every tap."""
    model, taps, ends = model_of(name), {}, np.cumsum([0, *lengths]).tolist()
    cache, tokens = model.make_cache(), np.arange(3, 3 + ends[-1])[None] * 5 % 60
    for step, (begin, end) in enumerate(pairwise(ends)):
        prefix = f"step.{step}/" if step else ""
        keep = lambda tap, value, prefix=prefix: taps.update({prefix + tap: value})  # noqa: E731
        model.forward(tokens[:, begin:end], cache=cache, trace=keep)
    ids = tokens[0].tolist()
    about = {"tokens": json.dumps(ids[: lengths[0]]), "decoded": json.dumps(ids[lengths[0] :]),
             "step_lengths": json.dumps(lengths[1:])}  # fmt: skip
    return Dump(Path("port"), {n: x.shape for n, x in taps.items()}, taps.__getitem__, about)


@pytest.mark.parametrize("lengths", [[11, 1, 2], [2, 1, 1], [1, 1], [1, 12, 9]])
def test_reference_traces_of_decoding_are_clean(lengths):
    """By law: the reference itself, from its cache, in steps."""
    found = explain(model_of(MISTRAL), traced(MISTRAL, lengths))
    assert (found.verdict, found.steps) == ("clean", len(lengths) - 1)
    assert found.compared > 30
    assert found.conventions == [
        "2 taps are of other keys in every step, and not judged, "
        "such as model.layers.0.self_attn.scores"
    ]
    assert found.not_judged == [f"model.layers.{layer}.self_attn.scores" for layer in range(2)]


@long
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_bugs_of_a_prefill_and_of_a_cache_are_named_together(level):
    bugs = ["attn-scale-twice", "kv-ring-size-off-by-one[one key more]"]
    bugs.append("act-silu-vs-gelu[gelu (tanh) for silu]")
    found = explained(MISTRAL, (20, 1, 1, 1), bugs, level=level)
    assert ids(found) == {bug.partition("[")[0] for bug in bugs} and not found.unexplained


@long
def test_a_long_text_over_a_small_window():
    """55 tokens at once over a window of 9, then six more, of which each wraps the ring."""
    bug = "kv-ring-sliced-as-flat[the prompt's first W are kept]"
    found = explained(MISTRAL, (55, 1, 1, 1, 1, 1, 1), [bug])
    assert ids(found) == {"kv-ring-sliced-as-flat"} and not found.unexplained
    assert explained(MISTRAL, (55, 1, 1, 1, 1, 1, 1)).verdict == "clean"


@sampled(1, "kv-offset-aliased[in steps alone]")
@pytest.mark.parametrize(
    "bug",
    [
        "mask-top-left-aligned",
        "rope-pos-double-advance",
        "kv-offset-aliased[in steps alone]",
        "kv-never-stored",
    ],
)
def test_a_prompt_that_is_read_in_chunks(bug):
    found = explained(MISTRAL, (8, 7, 3, 1), [bug])
    assert ids(found) == {bug.partition("[")[0]} and not found.unexplained


@long
def test_inputs_of_layers_that_are_not_cut_with_the_chunk():
    bug = "per-layer-input-misaligned[of the first tokens in every step]"
    found = explained("gemma4/effective", (8, 7, 1), [bug])
    assert ids(found) == {"per-layer-input-misaligned"} and not found.unexplained


def changed(dump, **tensors):
    taps = {name: tensors.pop(name, None) for name in dump.shapes}
    read = {n: dump.read(n) if x is None else x for n, x in taps.items() if x is not False}
    read |= tensors
    return Dump(dump.path, {n: x.shape for n, x in read.items()}, read.__getitem__, dump.about)


def test_what_is_not_in_every_step_is_not_judged_and_said():
    dump, _ = decoded(MISTRAL, (14, 1, 1))
    found = explain(model_of(MISTRAL), changed(dump, **{"step.2/model.norm": False}))
    assert found.verdict == "clean"
    assert found.conventions == ["model.norm is not in every step, and not judged"]
    assert found.to_json()["coverage"]["not_judged"] == ["model.norm"]


def test_a_cache_of_fewer_keys_leaves_its_scores_unjudged(monkeypatch):
    """A ring returns the keys of its window, in an order of its own."""
    monkeypatch.setitem(decoded.__globals__, "is_of", lambda level, tap: True)
    dump, _ = decoded(MISTRAL, (14, 1, 1))
    few = {n: dump.read(n)[..., -9:] for n in dump.shapes
           if n.startswith("step.") and n.endswith((".scores", ".probs"))}  # fmt: skip
    found = explain(model_of(MISTRAL), changed(dump, **few))
    assert found.verdict == "clean"
    assert "4 taps are of other keys in every step" in found.conventions[0]


def test_a_step_of_another_shape_is_told_with_its_name():
    dump, _ = decoded(MISTRAL, (14, 1, 1))
    name = "step.2/model.layers.0.self_attn.k_proj"
    found = explain(model_of(MISTRAL), changed(dump, **{name: np.ones((1, 1, 40), np.float32)}))
    (one,) = (one for one in found.unexplained if one.tap == name)
    assert one.shape == "shape [1, 1, 40], but should be [1, 1, 20]"


def test_tokens_of_steps_may_be_told():
    """By hand: --tokens lists the prompt's, then what was fed."""
    dump, said = decoded(MISTRAL, (14, 1, 1), said=False)
    found = explain(model_of(MISTRAL), dump, tokens=said)
    assert (found.verdict, found.steps) == ("clean", 2)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"decoded": "[]"}, "holds 2 steps, but says what was fed in none"),
        ({"decoded": "[5]"}, "holds 2 steps, but says what was fed in 1"),
        ({"step_lengths": "[1]"}, "step_lengths '[1]' must be from 1 on, and add up to the 2 ids"),
        ({"step_lengths": "[2, 0]"}, "must be from 1 on, and add up to the 2 ids of decoded"),
    ],
)
def test_what_was_fed_must_be_known(about, words):
    dump, _ = decoded(MISTRAL, (14, 1, 1))
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        explain(model_of(MISTRAL), Dump(dump.path, dump.shapes, dump.read, dump.about | about))


def test_what_was_fed_in_one_step_must_be_known():
    dump, _ = decoded(MISTRAL, (14, 1))
    about = dump.about | {"decoded": "[]"}
    with pytest.raises(InputError, match="holds 1 step, but says what was fed in none"):
        explain(model_of(MISTRAL), Dump(dump.path, dump.shapes, dump.read, about))


def test_a_step_that_is_left_out_is_refused():
    dump, _ = decoded(MISTRAL, (14, 1, 1, 1))
    names = {n: False for n in dump.shapes if n.startswith("step.2/")}
    with pytest.raises(InputError, match=r"step\.2/ is missing, but there is step\.3/"):
        explain(model_of(MISTRAL), changed(dump, **names))


def test_steps_and_prompt_that_share_nothing_are_refused():
    dump, _ = decoded(MISTRAL, (14, 1))
    kept = [n for n in dump.shapes if n in ("model.norm", "step.1/logits")]
    some = Dump(dump.path, {n: dump.shapes[n] for n in kept}, dump.read, dump.about)
    with pytest.raises(InputError, match="no tap is in the prompt and in every step"):
        explain(model_of(MISTRAL), some)


@sampled(2, "llama/llama_longrope-lengths0")
@pytest.mark.parametrize("lengths", [[14, 1, 1, 1, 1], [9, 4, 5, 1], [20, 1, 1]])
@pytest.mark.parametrize("name", ["llama/llama_dynamic", "llama/llama_longrope"])
def test_positions_that_stretch_with_the_length(name, lengths):
    """By law: the reference itself, which keeps cached keys as they were. 16 tokens are short."""
    found = explain(model_of(name), traced(name, lengths))
    assert (found.verdict, found.unexplained) == ("clean", [])
    assert found.steps == len(lengths) - 1 and found.compared > 30


STRETCHED = (
    "by the prompt's length, in steps too",
    "by the length before the step",
    "by what a step is fed alone",
    "cached keys are turned anew in every step",
)


@sampled(1, "longrope-by the prompt's length, in steps too")
@pytest.mark.parametrize("variant", STRETCHED)
@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_stretch_by_another_length_is_named(name, variant):
    """14 tokens are short, and the third step is the first that is long."""
    id = {"dynamic": "rope-dynamic-ntk", "longrope": "rope-longrope-always-long"}[name]
    found = explained(f"llama/llama_{name}", (14, 1, 1, 1, 1), [f"{id}[{variant}]"])
    assert ids(found) == {id} and not found.unexplained
    (one,) = found.faults
    assert variant in one.variant.split(" or ") and one.where == "from step 3 on"


def test_the_report_says_the_steps():
    found = explain(model_of(MISTRAL), open_dump(TRANSFORMERS / "never_stored.safetensors"))
    text = report(found)
    assert "7 taps compared over the prompt and 4 steps, computed in float32" in text
    assert re.search(r"\ntokens +from step 1 on\n", text)
    assert found.to_json()["faults"][0]["where"] == "from step 1 on"
    assert found.taps[1].place == "first in step 1, at [0, 0, 0]"


@pytest.mark.parametrize(
    ("wrong", "steps", "words"),
    [
        ("....11", (4, 5), "from step 1 on"),
        (".....1", (4, 5), "in step 2"),
        ("....1.", (4, 5), "in step 1"),
        ("....1", (4,), "from step 1 on"),
        ("....1.1", (4, 5, 6), "in steps 1, 3"),
        ("....0.111", (4, 5, 6, 7, 8), "from step 3 on"),
        (".....1.1.1.1.1", (4, 5, 6, 7, 8, 9, 10, 11, 12, 13), "in 5 steps from step 2 on"),
        ("....0011", (4, 6), "in step 2"),
        ("111100", (4, 5), "in the prompt alone"),
        ("...111", (), "from position 3 on"),
        ("...111", (4, 5), "from position 3 on"),
        (".11111", (), ""),
        ("111111", (4,), ""),
        ("......", (4,), ""),
        (".1.1.1", (), ""),
    ],
)
def test_words_on_which_tokens_are_wrong(wrong, steps, words):
    """By hand: 1 is a wrong token, and steps begin at these."""
    wrong = np.array([one == "1" for one in wrong])
    assert in_words(wrong, steps) == words


def test_a_place_is_told_as_it_lies_in_its_step():
    """By hand: five tokens, then a step of two and one of one."""
    assert place_of([0, 4, 7], 1, (5, 7)) == "first at [0, 4, 7]"
    assert place_of([0, 6, 7], 1, (5, 7)) == "first in step 1, at [0, 1, 7]"
    assert place_of([0, 2, 7, 3], 2, (5, 7)) == "first in step 2, at [0, 2, 0, 3]"
    assert place_of([0, 4, 7], 1, ()) == "first at [0, 4, 7]"


def test_a_trace_of_lockstep_itself(tmp_path, lockstep):
    """By witness: `trace --decode` and `explain` through the command line."""
    path = tmp_path / "trace.safetensors"
    said = lockstep(
        "trace", WITNESSES / MISTRAL, "-o", path, "--tokens", "3,14,15,9", "--decode", 3
    )
    assert said.code == 0
    said = lockstep("explain", WITNESSES / MISTRAL, path)
    assert said.code == 0 and "over the prompt and 3 steps" in said.out


def test_the_witness_is_that_of_the_same_checkpoint():
    """By law: its tokens are within the vocabulary, and none is of another model."""
    dump = open_dump(TRANSFORMERS / "right.safetensors")
    assert reference.load(WITNESSES / MISTRAL).config.vocab_size > max(dump.tokens + dump.decoded)
