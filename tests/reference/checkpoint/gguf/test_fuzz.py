"""A sample of the fuzzer. By law: the rules of the format."""

from lockstep.reference.checkpoint.safetensors_header import Entry
from tests.fuzz import fuzz_gguf

COUNT = 1500


def test_each_file_is_refused_cleanly_or_read_right():
    failures: list[str] = []
    outcomes = fuzz_gguf.fuzz(COUNT, 0, failures.append)
    assert failures == []
    assert outcomes.total() == COUNT
    # A mutator that makes nothing but rubbish, or nothing but sound files, would test little.
    assert outcomes["accepted"] > COUNT / 20
    assert outcomes["refused: the container"] > COUNT / 2
    assert outcomes["refused: the model"] > COUNT / 50


def unchecked(infos, start, size, alignment, path):
    """Place tensors wherever they say that they are."""
    return {
        name: Entry(info.type, info.shape, start + info.offset, start + info.offset + info.nbytes)
        for name, info in infos.items()
    }


def test_the_fuzzer_sees_a_reader_that_is_wrong(monkeypatch):
    """By law: without the check of the chain, some files must come out as failures."""
    monkeypatch.setattr("lockstep.reference.checkpoint.gguf.file.place", unchecked)
    failures: list[str] = []
    fuzz_gguf.fuzz(300, 0, failures.append)
    assert any("start of" in text or "after the last" in text for text in failures)
