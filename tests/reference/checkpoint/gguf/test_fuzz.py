"""A sample of the fuzzer. By law: the rules of the format."""

import pytest

from tests.fuzz import fuzz_gguf

COUNT = 4000


def test_each_file_is_refused_cleanly_or_read_right():
    failures: list[str] = []
    outcomes = fuzz_gguf.fuzz(COUNT, 0, failures.append)
    assert failures == []
    assert outcomes.total() == COUNT
    # A mutator that makes nothing but rubbish, or nothing but sound files, would test little.
    assert outcomes["accepted"] > COUNT / 20
    assert outcomes["refused: the container"] > COUNT / 2
    assert outcomes["refused: the model"] > COUNT / 50


@pytest.mark.parametrize("check", ["tensors.block_of", "tensors.padded"])
def test_the_fuzzer_sees_a_reader_that_is_wrong(check, monkeypatch):
    """By law: with a size or a padding that is wrong, some files must come out as failures."""
    module, name = check.split(".")
    wrong = {"block_of": lambda kind: (1, 1), "padded": lambda offset, alignment: offset}[name]
    monkeypatch.setattr(f"lockstep.reference.checkpoint.gguf.{module}.{name}", wrong)
    failures: list[str] = []
    fuzz_gguf.fuzz(200, 0, failures.append)
    assert failures
