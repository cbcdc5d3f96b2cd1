"""Writing safetensors one tensor at a time. By witness: the safetensors package."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

VALUES = {
    "bytes": np.arange(3, dtype=np.uint8),
    "wide": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # turned: not in the order of memory
    "scalar": np.array(2.5, np.float16),
    "none": np.zeros((0, 4), np.float32),
}
TAGS = {"uint8": "U8", "float32": "F32", "float16": "F16"}


def plan(values, seen):
    def make(name):
        seen.append(name)
        return values[name]

    return {
        name: Planned(TAGS[value.dtype.name], value.shape, lambda name=name: make(name))
        for name, value in values.items()
    }


def test_the_package_reads_what_is_written(tmp_path):
    made, done = [], []
    path = tmp_path / "x.safetensors"
    write_safetensors(path, plan(VALUES, made), metadata={"format": "pt"}, done=done.append)
    found = load_file(path)
    assert found.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    assert made == done == ["none", "wide", "scalar", "bytes"]  # each once, the wide types first
    ours = SafetensorsFile(path)
    assert ours.metadata == {"format": "pt"}
    starts = [ours.entries[name].start % VALUES[name].itemsize for name in VALUES]
    assert starts == [0] * len(VALUES)


def test_what_was_not_planned_is_not_written(tmp_path):
    wrong = {"x": Planned("F32", (3,), lambda: np.zeros(2, np.float32))}
    with pytest.raises(ValueError, match="'x': 8 bytes, but planned were 12"):
        write_safetensors(tmp_path / "x", wrong, metadata={}, done=print)
    (tmp_path / "y").write_text("mine")
    with pytest.raises(FileExistsError):
        write_safetensors(tmp_path / "y", {}, metadata={}, done=print)
    assert (tmp_path / "y").read_text() == "mine"
