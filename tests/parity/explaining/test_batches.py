"""Dumps of batches of unequal prompts. By law: the reference with `lengths`. By hand: metadata."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep.parity.capture.captured import Collection
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.explaining.steps.batch import padded, positions_of, rows_of
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator, record
from lockstep.parity.noise import ways
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.explaining.ports import ids, is_of, model_of, rewrite_of
from tests.sampled import sampled

MISTRAL, GPT2 = "llama/mistral_window", "gpt2/variant"
PROMPTS = [[2, 45, 1, 9, 55, 60, 3, 8], [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32], [38, 4, 62, 6]]


def dumped(taps, **about):
    shapes = {tap: value.shape for tap, value in taps.items()}
    return Dump(Path("port"), shapes, taps.__getitem__, {k: str(v) for k, v in about.items()})


def traced(name):
    """Return what the reference computes of the prompts, padded on the right."""
    lengths, taps = [*map(len, PROMPTS)], {}
    rows = [row + [7] * (max(lengths) - len(row)) for row in PROMPTS]
    model_of(name).forward(rows, lengths=lengths, trace=taps.__setitem__)
    return dumped(taps, batch=PROMPTS)


@sampled(2, "gemma4/sparse")
@pytest.mark.parametrize(
    "name", [MISTRAL, GPT2, "gemma4/effective", "gemma4/sparse", "qwen3_moe/separate"]
)
def test_a_right_batch_of_the_reference_is_clean(name):
    found = explain(model_of(name), traced(name))
    assert (found.verdict, found.unexplained) == ("clean", []) and found.compared > 20


def test_what_fills_up_may_hold_anything():
    """NaN and all: nobody looks, and nobody sees it."""
    dump = traced(MISTRAL)
    taps = {name: dump.read(name).copy() for name in dump.shapes if is_of("modules", name)}
    for value in taps.values():
        value[2, 4:] = np.nan
    assert explain(model_of(MISTRAL), dumped(taps, batch=PROMPTS)).verdict == "clean"


def port(name, bugs, *, steps=3, left=True, level="modules"):
    """Return a dump of the prompts and steps, made of the graph with bugs in it."""
    model, longest = model_of(name), max(map(len, PROMPTS))
    later = [[11, 12, 13][:steps], [21, 22, 23][:steps], [31, 32, 33][:steps]]
    side = "left" if left else "right"
    said = {"batch": json.dumps(PROMPTS), "batch_decoded": json.dumps(later), "padding": side}
    tokens, pads, lengths = rows_of(dumped({}, **said), steps)
    starts = tuple(range(longest, longest + steps))
    graph = padded(record(model, tokens, positions_of(pads), steps=starts), pads)
    run = Evaluator(graph, ways(np.dtype(np.float32))[1][0], np.dtype(np.float32), {},
                    Tensors(model.checkpoint))  # fmt: skip
    changed = {}
    for bug in bugs:
        some = ((call.number, rewrite_of(bug)(call, graph)) for call in graph.calls)
        changed |= {number: call for number, call in some if call is not None}
    assert bool(changed) == bool(bugs) and lengths == [longest] + [1] * steps
    taps = {}
    for tap, number in graph.taps.items():
        if is_of(level, tap):
            value = run.target(number, changed)
            taps[tap] = value[:, :longest]
            taps |= {f"step.{s}/{tap}": value[:, longest + s - 1 : longest + s]
                     for s in range(1, steps + 1)}  # fmt: skip
    return dumped(taps, **said)


@sampled(2, "gemma4/effective-False")
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", [MISTRAL, GPT2, "gemma4/effective"])
def test_a_right_batch_with_steps_is_clean(name, left):
    found = explain(model_of(name), port(name, [], left=left))
    assert (found.verdict, found.unexplained, found.steps) == ("clean", [], 3)


@sampled(1, "llama/mistral_window-True-mask-padding-attended-in rows 0, 2")
@pytest.mark.parametrize(
    ("name", "left", "bug", "where"),
    [
        (MISTRAL, True, "mask-padding-attended", "in rows 0, 2"),
        (MISTRAL, False, "mask-padding-attended[in steps alone]", "in rows 0, 2 from step 1 on"),
        (GPT2, True, "learned-pos-batch-shared-offset", "in rows 0, 2"),
        (MISTRAL, True, "kv-left-pad-merge", "in rows 0, 2 from step 1 on"),
        (MISTRAL, False, "rope-batched-kernel[in steps]", "in rows 1, 2 from step 1 on"),
        (MISTRAL, True, "kv-never-stored", "from step 1 on"),
        (GPT2, False, "kv-cursor-not-advanced[later tokens in one slot]", "from step 2 on"),
        (MISTRAL, True, "attn-scale-twice", ""),
    ],
)
def test_a_bug_in_a_batch_is_named_with_its_rows(name, left, bug, where):
    found = explain(model_of(name), port(name, [bug], left=left))
    assert ids(found) == {bug.partition("[")[0]} and not found.unexplained
    assert found.faults[0].where.startswith(where) if where else "row" not in found.faults[0].where


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"batch": "[]"}, "batch must be a JSON list of lists of token ids"),
        ({"batch": "[1, 2]"}, "batch must be a JSON list of lists of token ids"),
        ({"batch": "[[5], []]"}, "row 1 of batch is empty"),
        ({"batch": str([[0] * 3000, *[[1]] * 2000])}, "2001 rows of up to 3000 ids, and no tensor"),
        ({"padding": "middle"}, "padding must be 'left' or 'right', not 'middle'"),
        ({"batch_decoded": "[[1], [2, 3, 4], [2, 3, 4]]"},
         r"batch_decoded must have 3 ids for each of 3 rows, not \[1, 3, 3\]"),
        ({"batch_decoded": "[[1, 2, 3]]"}, "batch_decoded must have 3 ids for each of 3 rows"),
    ],
)  # fmt: skip
def test_metadata_that_is_nonsense_is_refused(about, words):
    dump = port(MISTRAL, [])
    with pytest.raises(InputError, match=words):
        explain(model_of(MISTRAL), Dump(dump.path, dump.shapes, dump.read, dump.about | about))


def test_a_bug_in_the_layers_of_a_batch_is_named_and_what_fixing_it_gives():
    """By law: with it fixed the logits are right, but for what fills up a row."""
    found = explain(model_of(MISTRAL), port(MISTRAL, ["attn-scale-twice"], level="layers", steps=0))
    assert ids(found) == {"attn-scale-twice"} and not found.unexplained
    before, after = (found.counterfactual[at]["logits_error"] for at in (0, -1))
    assert after < 1e-5 < 1e-2 < before


def test_what_a_capture_says_of_a_batch():
    """By hand: two rows, the first of which has one token less; then a step."""
    kept = Collection("model", "torch")
    kept.fed_rows([([[0, 5, 6], [7, 8, 9]], [[False, True, True], [True] * 3]),
                   ([[1], [2]], [[True], [True]])])  # fmt: skip
    assert (kept.dump.batch, kept.dump.padding) == ([[5, 6], [7, 8, 9]], "left")
    assert kept.dump.rows("batch_decoded") == [[1], [2]] and "step_lengths" not in kept.about
    kept.fed_rows([([[5, 6], [7, 0]], [[True, True], [True, False]]), None])
    assert (kept.dump.batch, kept.dump.padding) == ([[5, 6], [7]], "right")
