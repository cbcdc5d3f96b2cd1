"""The conformance vectors of the dump format, which writers and readers in any language can take.

By witness: the safetensors package reads each valid file, and what it says of the invalid ones is
in the index. By hand: the values, and the line that each invalid file is refused with.
"""

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize, safe_open

from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.writers.lockstep_dump import SIZES, TraceWriter
from tests.vectors.dump import make

FOLDER = Path(make.__file__).parent
INDEX = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
VALID = pytest.mark.parametrize("entry", INDEX["valid"], ids=lambda entry: entry["file"])
INVALID = pytest.mark.parametrize("entry", INDEX["invalid"], ids=lambda entry: entry["file"])


def theirs(path):
    """Return what the package reads: name -> dtype tag, shape and bytes."""
    return {name: (one["dtype"], one["shape"], one["data"].hex()) for name, one in
            deserialize(path.read_bytes())}  # fmt: skip


def listed(entry):
    return {one["name"]: (one["dtype"], one["shape"], one["bytes"]) for one in entry["tensors"]}


def test_the_script_makes_the_vectors_that_are_here():
    files = make.files()
    for path, made in files.items():
        assert meaning((FOLDER / path).read_bytes(), path) == meaning(made, path)
    kept = {path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.safetensors")}
    assert kept | {"index.json"} == set(files)
    assert sum(map(len, files.values())) < 40_000


def meaning(data, path):
    """Return a valid file as JSON and bytes: the package writes metadata in any order."""
    start = 8 + int.from_bytes(data[:8], "little")
    return (json.loads(data[8:start]), data[start:]) if path.startswith("valid/") else data


@VALID
def test_the_package_reads_a_valid_vector_as_the_index_says(entry):
    path = FOLDER / entry["file"]
    assert theirs(path) == listed(entry)
    with safe_open(path, "numpy") as file:
        assert (file.metadata() or {}) == entry["metadata"]


@VALID
def test_we_read_the_values_that_are_listed(entry, lockstep):
    path = FOLDER / entry["file"]
    dump = open_dump(path)
    assert dump.is_trace == (entry["kind"] == "trace")
    assert dict(dump.about) == entry["metadata"]
    assert set(dump.shapes) == {one["name"] for one in entry["tensors"]}
    for one in entry["tensors"]:
        found = dump.read(one["name"])
        assert (list(found.shape), found.tobytes().hex()) == (one["shape"], one["bytes"])
        assert [plain(value) for value in found.ravel().tolist()] == one["values"]
    said = lockstep("dump", "validate", path)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{path}: valid, a {entry['kind']}\n")


def plain(value):
    """Return a number as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value


def test_minus_zero_is_listed_as_such():
    found = json.dumps([one["values"] for entry in INDEX["valid"] for one in entry["tensors"]])
    assert found.count("-0.0") == 4  # in F64, F32, F16 and BF16


@INVALID
def test_an_invalid_vector_is_refused_with_its_line(entry, lockstep):
    said = lockstep("dump", "validate", FOLDER / entry["file"], "--json", "-")
    assert (said.code, said.out) == (2, "")
    line = said.err.removeprefix("lockstep: error: ")
    assert line.split(".safetensors: ", 1)[1] == entry["says"] + "\n"
    assert "\n" not in line.removesuffix("\n")


@INVALID
def test_what_the_package_says_of_an_invalid_vector(entry):
    data = (FOLDER / entry["file"]).read_bytes()
    try:
        deserialize(data)
        said = "reads"
    except Exception as error:
        assert type(error).__name__ == "SafetensorError"
        said = "refuses"
    assert said == entry["safetensors_package"]


@VALID
def test_the_python_writer_writes_a_vector(entry, tmp_path, lockstep):
    tensors = [one for one in entry["tensors"] if one["dtype"] in SIZES]
    about = {key: entry["metadata"].get(key, "") for key in ("model", "backend")}
    extra = {k: v for k, v in entry["metadata"].items() if k not in ("format", "version", "tokens")}
    path = tmp_path / "ours.safetensors"
    tokens = json.loads(entry["metadata"].get("tokens", "[]"))
    with TraceWriter(path, tokens=tokens, **(about | extra)) as dump:
        dump.add("always", [1.0], shape=(1,))
        for one in tensors:
            data = bytes.fromhex(one["bytes"])
            dump.add(one["name"], data, shape=one["shape"], dtype=one["dtype"])
    expected = {one["name"]: (one["dtype"], one["shape"], one["bytes"]) for one in tensors}
    assert theirs(path) == expected | {"always": ("F32", [1], struct.pack("<f", 1.0).hex())}
    said = lockstep("dump", "validate", path, "--json", "-")
    assert (said.code, said.err) == (0, "")
    assert extra.items() <= json.loads(said.out)["metadata"].items()


def test_values_of_lists_are_those_of_the_vectors(tmp_path):
    """By witness: NumPy rounds to the same bits as the writer."""
    values = [0.1, -0.0, 1e-45, 3.4028234663852886e38, math.inf]
    with TraceWriter(tmp_path / "a.safetensors") as dump:
        dump.add("x", values, shape=(5,))
    assert theirs(tmp_path / "a.safetensors")["x"][2] == np.array(values, "<f4").tobytes().hex()
