"""A sample of the fuzzer. By witness: the safetensors package, and the rules of the format."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

COUNT = 6000


@pytest.fixture(scope="module")
def fuzzer() -> ModuleType:
    path = Path(__file__).parents[2] / "fuzz" / "fuzz_safetensors.py"
    spec = importlib.util.spec_from_file_location("fuzz_safetensors", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_file_is_refused_cleanly_or_read_right(fuzzer: ModuleType) -> None:
    failures: list[str] = []
    outcomes = fuzzer.fuzz(COUNT, 0, failures.append)
    assert failures == []
    assert outcomes.total() == COUNT
    # A mutator that makes nothing but rubbish, or nothing but sound files, would test little.
    assert outcomes["accepted"] > COUNT / 50
    assert outcomes["refused"] > COUNT / 2


def test_the_fuzzer_sees_a_reader_that_is_wrong(
    fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By law: without the check of the spans, some files must come out as failures.
    module = "lockstep.reference.checkpoint.safetensors_header._check_chain"
    monkeypatch.setattr(module, lambda *_: None)
    failures: list[str] = []
    fuzzer.fuzz(1000, 0, failures.append)
    assert any("span" in text or "byte" in text or "package" in text for text in failures)
