"""A sample of the fuzzer. By law: refused in one line, or of the base's shapes."""

from tests.fuzz import fuzz_adapters

COUNT = 400


def test_each_folder_is_refused_cleanly_or_fits():
    failures: list[str] = []
    outcomes = fuzz_adapters.fuzz(COUNT, 0, failures.append)
    assert failures == []
    assert min(outcomes["refused"], outcomes["accepted"]) > COUNT // 20


def test_the_fuzzer_sees_a_reader_that_is_wrong(monkeypatch):
    """By hand: the base has other shapes than those that the reader went by."""
    monkeypatch.setattr(fuzz_adapters, "shape_of", lambda path, base: (7, 7))
    failures: list[str] = []
    fuzz_adapters.fuzz(30, 0, failures.append)
    assert failures
