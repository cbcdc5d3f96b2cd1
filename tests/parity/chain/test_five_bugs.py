"""The port of docs/parity/five-bugs.md: right without its bugs, and each of them named alone."""

import runpy

import numpy as np
import pytest

from lockstep import parity, reference
from tests.parity.conftest import DEMO, ROOT
from tests.sampled import sampled

FOLDER = ROOT / "docs/parity/five_bugs"
STORY = runpy.run_path(str(FOLDER / "port.py"))
ADAPTER = FOLDER / "adapter"
ASKED, COUNT = "What is 2+2?", 3
NAMES = {
    "newline": "escaped-newline",
    "bf16": "bf16-read-as-fp16",
    "lora": "lora-scale-divided-again",
    "position": None,  # changes nothing that follows: a note
    "cache": "kv-head-count-in-cache",
}


@pytest.fixture(scope="module")
def model():
    return reference.load(DEMO, ADAPTER)


def test_without_its_bugs_it_is_the_model(model):
    """By law: the reference's logits, with the adapter; the adapter's own words."""
    port = STORY["Port"](DEMO, ADAPTER, ())
    tokens = port.prompt(ASKED)
    logits = port.forward(tokens, [[] for _ in range(4)], lambda name, x: None)
    np.testing.assert_allclose(logits, model.forward([tokens])[0], rtol=0, atol=1e-4)
    assert port.say(ASKED, 12) == "2 + 2 equals 4, arr!"


@sampled(1, "lora")
@pytest.mark.parametrize("bug", [None, *NAMES])
def test_each_bug_is_named(bug, model, tmp_path):
    port = STORY["Port"](DEMO, ADAPTER, [bug] if bug else [])
    port.say(ASKED, COUNT, tmp_path / "port.safetensors")
    found = parity.explain(model, tmp_path / "port.safetensors")
    wanted = NAMES.get(bug)
    assert [one.id for one in found.faults] == ([wanted] if wanted else [])
    assert not found.unexplained
    notes = [line.partition(":")[0] for line in found.conventions]
    assert ("rope-pos-starts-at-1" in notes) == (bug == "position")


def test_all_of_them_are_what_the_story_tells():
    assert set(STORY["BUGS"]) == set(NAMES)
