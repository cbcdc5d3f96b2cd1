"""Which of a dump's tensors are the logits that a choice was made from. By hand."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep import reference
from lockstep.parity.chain.chain import Chain, rows_of_prompt
from lockstep.parity.chain.prompt import template_of
from lockstep.parity.chain.rows import OwnRows
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.explaining.steps.batch import rows_of
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.settings import ChatTemplate
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.parity.conftest import DEMO, MODELS

ROW = np.array([[0.0, 1.0, -30.0, 60.0]])


def dump(about=None, **taps):
    named = {name.replace("step_1_", "step.1/"): value for name, value in taps.items()}
    shapes = {name: value.shape for name, value in named.items()}
    return Dump(Path("port"), shapes, named.__getitem__, about or {})


def own(port, cap=None, **mapped):
    return OwnRows(port, 4, mapped=mapped, cap=cap).rows([])[0]


def test_the_head_is_before_its_softcap():
    """By hand: 30 tanh(x / 30); what is called logits has it already, in its own step alone."""
    port = dump(lm_head=ROW, logits=2 * ROW, step_1_lm_head=ROW)
    first, second = own(port, 30.0)
    np.testing.assert_array_equal(first, 2 * ROW[0])
    np.testing.assert_allclose(second, [0, 30 * np.tanh(1 / 30), 30 * np.tanh(-1), 30 * np.tanh(2)])
    np.testing.assert_array_equal(own(port)[1], ROW[0])


def test_only_the_rows_of_choices_become_float64():
    """By law: a hundred thousand rows of a prompt take no more memory than the last two."""
    port = dump(lm_head=np.tile(ROW.astype(np.float32), (1, 100_000, 1)))
    tracemalloc.start()
    try:
        (first,), before = OwnRows(port, 4, mapped={}, cap=30.0).rows([])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose([first, before], 30 * np.tanh(np.repeat(ROW, 2, axis=0) / 30))
    assert most < 100_000  # of 3 MB


@pytest.mark.parametrize("folder", [False, True])
def test_only_the_rows_of_choices_are_read(tmp_path, folder):
    """By law: so many rows of a file take no more memory than the last two."""
    logits = np.tile(ROW.astype(np.float32), (1, 100_000, 1))
    logits[0, -2] += 1
    if folder:
        np.save(tmp_path / "logits.npy", logits)
    else:
        save_file({"logits": logits}, tmp_path / "x.safetensors")
    port = open_dump(tmp_path if folder else tmp_path / "x.safetensors")
    tracemalloc.start()
    try:
        (first,), before = OwnRows(port, 4, mapped={}, cap=None).rows([])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal([first, before], [ROW[0], ROW[0] + 1])
    assert most < 200_000  # of 1.6 MB, with what begins a file


def test_a_map_says_what_the_logits_are(tmp_path):
    port = dump(scores_of_all=ROW)
    assert own(port) == [None]
    np.testing.assert_array_equal(own(port, scores_of_all="logits")[0], ROW[0])


def test_a_map_file_reaches_the_choices(tmp_path):
    """By law: the port's own rows are used, so the note of the reference's is not there."""
    model, tokens = reference.load(MODELS / "untied_float32"), [3, 14, 15]
    logits = model.forward([tokens])
    (tmp_path / "map.yaml").write_text("logits: out\n")
    about = {"format": "lockstep-trace", "version": "1", "tokens": "[3, 14, 15]",
             "generated": f"[{int(logits[0, -1].argmax())}]", "sampling": "{}"}  # fmt: skip
    for names, told in ((None, True), (tmp_path / "map.yaml", False)):
        found = Diagnosis()
        Chain(model, dump(about, out=np.asarray(logits)), names=names).behind(found)
        assert any("did not dump its own" in one for one in found.conventions) is told


def test_the_rows_of_a_prompt():
    """Scores change in two axes, and what is of one token in both says nothing."""
    port = dump(
        norm=np.zeros((1, 5, 8)), step_1_norm=np.zeros((1, 1, 8)),
        probs=np.zeros((1, 2, 5, 5)), step_1_probs=np.zeros((1, 2, 1, 6)),
        logits=np.zeros((1, 1, 9)), step_1_logits=np.zeros((1, 1, 9)),
    )  # fmt: skip
    assert rows_of_prompt(port) == 5
    assert rows_of_prompt(dump(norm=np.zeros((1, 5, 8)))) == 0


def test_a_step_of_a_batch_is_fed_something():
    about = {"batch": "[[1, 2], [3]]", "batch_decoded": "[[4], [5]]", "step_lengths": "[0, 1]"}
    with pytest.raises(InputError, match=r"step_lengths '\[0, 1\]' must be from 1 on"):
        rows_of(dump(about, norm=ROW), 2)


def test_a_chat_with_tools_has_a_template_of_its_own(monkeypatch):
    tokenizer = load_tokenizer(DEMO)
    backend, settings = tokenizer.parts
    other = ChatTemplate("tools", Path("tools"))
    both = replace(settings, templates={**settings.templates, "tool_use": other})
    monkeypatch.setattr(type(tokenizer), "parts", (backend, both))
    assert template_of(tokenizer, [], {"tools": [{"name": "add"}]}) is other
    assert template_of(tokenizer, [], {"tools": []}) is settings.templates["default"]
