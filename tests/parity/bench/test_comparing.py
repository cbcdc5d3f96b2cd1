"""The speed of a comparison, on two traces that are really written, read and compared."""

import numpy as np

from lockstep.parity.bench import comparing
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.parts import PIECE


def test_it_compares_what_it_wrote_and_removes_it(tmp_path, capsys):
    small = ["--gb", "0.002", "--tensor-gb", "0.001", "--rounds", "2"]
    assert comparing.main([*small, "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("two traces of 0.0 GB")
    assert [line.split("  ")[1] for line in lines[1:4]] == [
        "read from the page cache", "diff", "diff over read",
    ]  # fmt: skip
    assert 10 < float(lines[6].split()[-2]) < 400  # MB, of Python and NumPy alone
    assert list(tmp_path.iterdir()) == []


def test_the_sides_are_a_rounding_apart_and_holes_are_zeros(tmp_path):
    """By law: of 6 MB a tensor only the first piece is written."""
    for off, name in ((0.0, "left"), (1e-7, "right")):
        comparing.write(tmp_path / name, 0.012, 0.006, off, sparse=True)
    left, right = (open_dump(tmp_path / name) for name in ("left", "right"))
    assert len(left.shapes) == 2
    for name in left.shapes:
        ours, theirs = left.read(name).ravel(), right.read(name).ravel()
        assert ours.size == 1_500_000 and not ours[PIECE:].any() and ours[:PIECE].all()
        apart = np.abs(ours - theirs).max()
        assert 0 < apart < 1e-6


def test_a_folder_that_is_not_there_is_refused_in_a_line(tmp_path, capsys):
    folder = str(tmp_path / "none")
    assert comparing.main(["--folder", folder]) == 2
    said = f"{folder}: no folder can be made there: No such file or directory\n"
    assert capsys.readouterr().err == said
