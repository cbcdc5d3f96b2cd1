"""What a person sees on a terminal, and what a pipe is given. By hand."""

import io
from argparse import Namespace

import pytest

from lockstep.parity.cli.output import counted, emit, folded, write
from lockstep.parity.new_folder import new_folder
from lockstep.reference.checkpoint.errors import InputError

ROW = "seen at     " + ", ".join(f"model.layers.{n}.mlp.down_proj" for n in range(3))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def printed(monkeypatch):
    """Return what `emit` prints of a text on an output, at 60 columns."""

    def run(output: io.StringIO, text: str, **more: bool) -> str:
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr("sys.stdout", output)
        emit(Namespace(json=None), dict, lambda: text, **more)
        return output.getvalue()

    return run


def test_a_terminal_gets_lines_that_it_has_room_for(printed):
    shown = printed(Terminal(), f"{ROW}\n\nshort")
    assert shown.splitlines() == [
        "seen at     model.layers.0.mlp.down_proj,",
        "            model.layers.1.mlp.down_proj,",
        "            model.layers.2.mlp.down_proj",
        "",
        "short",
    ]


def test_a_pipe_and_a_format_get_lines_as_they_are(printed):
    assert printed(io.StringIO(), ROW) == f"{ROW}\n"
    assert printed(Terminal(), ROW, fold=False) == f"{ROW}\n"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("a sentence that is too long for it", "a sentence that is too long\n  for it"),
        ("  1. an item that is too long for it", "  1. an item that is too\n     long for it"),
        ("a  column that is too long for it", "a  column that is too long\n   for it"),
        ("a  1  2  3  4  5  6  7  8  9  10", "a  1  2  3  4  5  6  7  8  9\n  10"),
        ("x" * 40, "x" * 40),  # a name is not cut: it could not be copied
        ("two-part-names-that-are-long stay whole", "two-part-names-that-are-long\n  stay whole"),
    ],
)
def test_what_is_over_stands_below_the_last_column(line, shown):
    assert folded(line, 28) == shown


@pytest.mark.parametrize(
    ("things", "nouns", "said"),
    [(1, ["tap"], "1 tap"), (0, ["tap"], "0 taps"), ([7, 8], ["tap"], "2 taps"),
     (1, ["matrix", "matrices"], "1 matrix"), (2, ["matrix", "matrices"], "2 matrices")],
)  # fmt: skip
def test_a_number_has_its_noun(things, nouns, said):
    assert counted(things, *nouns) == said


def test_what_cannot_be_written_goes_by_the_name_that_was_given(tmp_path):
    """Not by that of the hidden file or folder which is to take it."""
    absent = tmp_path / "absent"
    with pytest.raises(InputError) as caught:
        write(absent / "x.json", "{}")
    assert str(caught.value) == f"{absent / 'x.json'}: cannot be written: No such file or directory"
    with pytest.raises(InputError) as caught, new_folder(absent / "x"):
        pass
    assert str(caught.value) == f"{absent / 'x'}: cannot be made: No such file or directory"
