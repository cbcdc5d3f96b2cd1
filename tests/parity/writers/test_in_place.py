"""The writer that keeps room for its header. By witness: safetensors' package reads its files."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.writers.in_place import InPlaceWriter
from lockstep.parity.writers.lockstep_dump import TraceWriter


@pytest.mark.parametrize("room", [0, 7, 64, 400, 1 << 16, 1 << 25])
def test_room_for_the_header_changes_nothing_but_the_gap(tmp_path, room):
    path = tmp_path / "port.safetensors"
    with InPlaceWriter(path, room, tokens=[1, 2]) as dump:
        dump.add("a", np.arange(6, dtype=np.uint8).data, shape=(2, 3), dtype="U8")
        dump.add("every other", np.arange(6, dtype=np.uint8)[::2].data, shape=(3,), dtype="U8")
        dump.add("b", [0.5, -1.5], shape=(2,))
    read = load_file(path)  # readers of ours take headers up to a limit, spaces included
    assert read["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and read["b"].tolist() == [0.5, -1.5]
    assert read["every other"].tolist() == [0, 2, 4]
    assert open_dump(path).tokens == [1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["port.safetensors"]


def test_a_header_that_finds_room_is_followed_by_no_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(TraceWriter, "close", lambda self: 1 / 0)
    with InPlaceWriter(tmp_path / "port.safetensors", 4096) as dump:
        dump.add("a", [1.0], shape=(1,))
    other = InPlaceWriter(tmp_path / "other.safetensors", 64)
    with pytest.raises(ZeroDivisionError):
        other.close()
    other.discard()


def test_after_an_error_nothing_is_left(tmp_path):
    with (
        pytest.raises(KeyError),
        InPlaceWriter(tmp_path / "port.safetensors", 4096) as dump,
    ):
        dump.add("a", [1.0], shape=(1,))
        raise KeyError
    assert not [*tmp_path.iterdir()]


def test_what_a_dump_says_of_itself_may_have_any_name(tmp_path):
    """By hand: a dump that is written again has a note called `room`, as the option is."""
    with TraceFile(tmp_path / "a", tokens=[1], room="a kitchen", path="a door") as file:
        file("logits", np.zeros(2, np.float32))
    about = open_dump(tmp_path / "a").about
    assert (about["room"], about["path"]) == ("a kitchen", "a door")
