"""What a trace costs: the runs are really made, and their files are gone again."""

import pytest

from lockstep.parity.bench import tracing
from lockstep.parity.bench.tracing import PLAIN, TAPS, TRACE, WRITE

DEMO = "parity/demo/checkpoint"


def test_it_times_what_it_says_and_removes_it(tmp_path, capsys):
    small = ["--prompt-tokens", "5", "--rounds", "2", "--folder", str(tmp_path)]
    assert tracing.main([DEMO, *small]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[at].split(",")[0] for at in (0, 6)] == ["cpu", "reference"]
    assert [line[2:18].rstrip() for line in lines[2:6]] == [PLAIN, TAPS, TRACE, WRITE]
    assert list(tmp_path.iterdir()) == []


def test_ratios_are_within_a_round():
    """By hand: twice and four times the plain run, though the rounds differ by ten."""
    rounds = [{PLAIN: (1.0, 2.0), TRACE: (2.0, 6.0)}, {PLAIN: (10.0, 20.0), TRACE: (40.0, 60.0)}]
    line = tracing.said("cpu", 5, rounds, 10**9).splitlines()[-1]
    assert line.split() == ["trace", "to", "a", "file", "21.00", "3.00", "2.00-4.00",
                            "33.00", "3.00", "3.00-3.00"]  # fmt: skip


def test_as_many_bytes_are_written_as_a_trace_has(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "CHUNK", 100)
    tracing.write(tmp_path / "some", 250)
    assert (tmp_path / "some").stat().st_size == 250


@pytest.mark.parametrize(("words", "said"), [
    (["--backends", "gpu"], "--backends: 'gpu' is none of"),
    (["--rounds", "0"], "--rounds: 0, but should be at least 1"),
    (["--prompt-tokens", "0"], "--prompt-tokens: 0, but should be at least 1"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(words, said, capsys):
    assert tracing.main([DEMO, *words]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_folder_that_is_not_there_is_refused_in_a_line(tmp_path, capsys):
    """By law: before a model is read, which there is none of either."""
    folder = str(tmp_path / "none")
    assert tracing.main([folder, "--folder", folder]) == 2
    said = f"{folder}: no folder can be made there: No such file or directory\n"
    assert capsys.readouterr().err == said
