"""A tokenizer that is read once. By law."""

import gc
from pathlib import Path

import pytest

from lockstep.parity.generating import tokenizer_once as once
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer import tokenizer

DEMO = Path("parity/demo/checkpoint")


def test_it_is_read_once_and_without_the_collector(monkeypatch):
    seen, load = [], tokenizer.load_tokenizer

    def watched(path):
        seen.append(gc.isenabled())
        return load(path)

    monkeypatch.setattr(tokenizer, "load_tokenizer", watched)
    checkpoint = open_checkpoint(DEMO)
    assert once.tokenizer_once(checkpoint) is once.tokenizer_once(checkpoint)
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_afterwards_as_it_was(before, monkeypatch):
    def broken(path):
        raise InputError(path, "is none")

    monkeypatch.setattr(tokenizer, "load_tokenizer", broken)
    checkpoint = open_checkpoint(DEMO)
    try:
        if not before:
            gc.disable()
        with pytest.raises(InputError, match="is none"):
            once.tokenizer_once(checkpoint)
        assert gc.isenabled() == before
    finally:
        gc.enable()
