"""Tensors read a piece at a time: the same numbers as the whole, and no more memory. By law."""

import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.dumps import parts
from lockstep.parity.dumps.crew import Crew
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.npy import parts_of_file
from lockstep.parity.dumps.parts import held
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.naming.align import align
from lockstep.reference.checkpoint.errors import InputError
from tests.sampled import sampled

ARRAY = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(parts, "PIECE", 16)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int16", "bool"])
def test_the_pieces_of_a_trace_are_its_numbers(tmp_path, dtype):
    array = ARRAY.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    with TraceFile(tmp_path / "t", tokens=[1]) as file:
        file("before", np.ones(5, np.int8))  # so the tensor is at no even place
        file("x", array)
        file("empty", array[:0])
    dump = open_dump(tmp_path / "t")
    found = [piece.copy() for piece in dump.parts("x").pieces()]
    assert [len(piece) for piece in found] == [16] * 6 + [9]
    assert np.concatenate(found).tobytes() == array.tobytes()
    assert dump.parts("x").whole().tobytes() == array.tobytes()
    assert [piece.size for piece in dump.parts("empty").pieces()] == [0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_pieces_of_an_npy_file_are_its_numbers(tmp_path, order):
    np.save(tmp_path / "x.npy", np.asarray(ARRAY, order=order))
    np.savez(tmp_path / "x.npz", x=ARRAY)
    for path in (tmp_path, tmp_path / "x.npz"):
        tensor = open_dump(path).parts("x")
        assert np.concatenate([one.copy() for one in tensor.pieces()]).tolist() == (
            ARRAY.ravel().tolist()
        )


@pytest.mark.parametrize("kind", ["t.safetensors", "x.npy"])
def test_a_file_that_changes_between_pieces_is_refused(tmp_path, kind):
    path = tmp_path / kind
    if kind == "x.npy":
        np.save(path, ARRAY)
        tensor = open_dump(tmp_path).parts("x")
    else:
        with TraceFile(path, tokens=[1]) as file:
            file("x", ARRAY)
        tensor = open_dump(path).parts("x")
    pieces = tensor.pieces()
    next(pieces)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(InputError, match="changed while reading"):
        next(pieces)


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_an_array_of_another_shape_than_when_it_was_opened_is_refused(tmp_path, kind):
    """Also where what is there now has as many numbers, or a move would be looked for."""
    place = tmp_path if kind == "npy" else tmp_path / "x.npz"
    save, name = (np.save, "x") if kind == "npy" else (np.savez, "arr_0")
    save(tmp_path / "x", ARRAY)
    sides = open_dump(place), align(open_dump(place))
    for array in (ARRAY[:2], ARRAY.reshape(5, 3, 7)):
        save(tmp_path / "x", array)
        with pytest.raises(InputError, match="changed while reading: shape"):
            sides[0].parts(name)
        with pytest.raises(InputError, match="changed while reading: shape"):
            sides[1].parts(name, (1, *ARRAY.shape))


def test_a_broken_npy_file_is_refused_by_its_size(tmp_path):
    """By law: of 64 MB behind an array of 420 bytes nothing is read."""
    np.save(tmp_path / "x.npy", ARRAY)
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    with pytest.raises(InputError, match="bytes of data, but"):
        parts_of_file(tmp_path / "x.npy", "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_shape_that_does_not_fit_is_refused():
    assert held(ARRAY).reshaped((15, 7)).shape == (15, 7)
    with pytest.raises(ValueError, match="105 numbers"):
        held(ARRAY).reshaped((15, 8))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_crew_finds_in_order(threads):
    tensor = held(np.arange(1000))
    with Crew(threads, compiled=False) as crew:
        found = list(crew.each(lambda one, other: (int(one[0]), other.size), tensor, tensor))
    assert found == [(start, min(16, 1000 - start)) for start in range(0, 1000, 16)]


MEMORY = """
import sys
from pathlib import Path
from lockstep.parity.diffing import without_model as comparison
from lockstep.parity.bench import comparing
from lockstep.parity.bench.comparing import write
from lockstep.parity.bench.memory import peak_bytes
from lockstep.parity.diff import diff
from lockstep.parity.dumps import parts
from lockstep.parity.dumps.validation import validate
parts.PIECE = 1 << 15
comparing.PIECE = comparing.NUMBERS = 1 << 15  # so that writing has no higher peak
comparison.cores = lambda: 2
paths = [Path(sys.argv[1]) / side for side in ("left", "right")]
def grown(gb):
    for off, path in zip((0.0, 1e-3), paths):
        write(path, gb, gb, off, sparse=True)
    before = peak_bytes()
    found = diff(*paths)
    assert found.verdict == "diverged" and "first at" in found.taps[0].place, found
    validate(paths[0])
    return peak_bytes() - before
grown(0.001)
print(grown(0.064))
"""


@sampled(0)
def test_memory_does_not_grow_with_the_tensor(tmp_path):
    """In a process of its own, where nothing else was: tensors of 64 MB, pieces of 128 KB."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 40e6  # about 1 MB by pieces, hundreds with both tensors whole
