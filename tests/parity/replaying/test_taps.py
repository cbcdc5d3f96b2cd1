"""The list of taps, made without computing, is what a real run reports. By law."""

import json

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.replaying.recorder import Recorder
from lockstep.parity.replaying.taps import STANDINS, taps_of
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.model import Model
from tests.parity.conftest import DEMO, MODELS

FOLDERS = [DEMO, *sorted(MODELS.iterdir())]
BATCH, LENGTH = 2, 7


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_names_shapes_and_operations_are_those_of_a_run(folder):
    model = reference.load(folder)
    recorder, ran = Recorder(model.ops), []
    run = Model(model.checkpoint, dtype="float32", ops=recorder)
    run.forward(np.ones((BATCH, LENGTH), int), trace=lambda *tap: ran.append(tap))
    made_by = {id(node.output): node.op for node in recorder.take().nodes}
    sizes = {"B": BATCH, "L": LENGTH}
    listed = [
        (tap["name"], tuple(sizes.get(size, size) for size in tap["shape"]), tap["op"])
        for tap in taps_of(open_checkpoint(folder))
    ]
    assert listed == [(name, value.shape, made_by[id(value)]) for name, value in ran]


def test_a_size_of_the_model_is_never_taken_for_the_batch(plain, monkeypatch):
    """By hand: a config that uses up the numbers that stand for B and L."""
    checkpoint = open_checkpoint(plain)
    monkeypatch.setattr(
        "lockstep.parity.replaying.taps.STANDINS", (checkpoint.config.vocab_size, *STANDINS)
    )
    assert taps_of(checkpoint)[-1]["shape"] == ["B", "L", checkpoint.config.vocab_size]


def test_no_weight_is_read(plain, monkeypatch):
    checkpoint = open_checkpoint(plain)
    monkeypatch.setattr(type(checkpoint), "tensor", None)
    monkeypatch.setattr("lockstep.reference.checkpoint.safetensors.SafetensorsFile._read", None)
    assert json.dumps(taps_of(checkpoint))
