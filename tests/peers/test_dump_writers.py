"""The writers in C++, Rust and Elixir: compiled here, and held to the vectors of the dump format.
So is Swift's, where there is a compiler.

By witness: the safetensors package reads what they write, and finds the bytes of the index. By law:
the same lines make the same tensors in each language, and a mistake leaves no file. The tiny
forward pass that shows how to use each is compared with the same in NumPy.
"""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize, safe_open

from lockstep.parity.cli import main
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.writers.examples import forward
from lockstep.parity.writers.lockstep_dump import SIZES

ROOT = Path(__file__).parents[2]
WRITERS = ROOT / "parity/writers"
DRIVERS = ROOT / "tests/peers/dump_writers"
VECTORS = ROOT / "tests/vectors/dump"
INDEX = json.loads((VECTORS / "index.json").read_text(encoding="utf-8"))["valid"]
LANGUAGES = {"cpp": "g++", "rs": "rustc", "exs": "elixir"}
if shutil.which("swiftc"):  # 540 MB of Debian's packages, which no run of the tests should fetch
    LANGUAGES["swift"] = "swiftc"
FLAGS = {
    "cpp": ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{WRITERS}"),
    "rs": ("-O", "--edition", "2021", "-D", "warnings"),
    "swift": ("-O", "-warnings-as-errors", "-parse-as-library", f"{WRITERS}/lockstep_dump.swift"),
}


def tool(language):
    found = shutil.which(LANGUAGES[language])
    assert found, f"{LANGUAGES[language]} is missing: Debian's packages are g++, rustc and elixir"
    return found


def built(source, language, folder):
    """Return the command that runs a program."""
    if language == "exs":
        return [tool(language), str(source)]
    target = folder / source.stem
    command = [tool(language), *FLAGS[language], str(source), "-o", str(target)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    return [str(target)]


@pytest.fixture(scope="module", params=LANGUAGES)
def writer(request, tmp_path_factory):
    """Return a function that has a language's writer do what lines say; it returns what it prints.

    The driver reads lines: meta KEY VALUE, open PATH, tensor NAME DTYPE SHAPE BYTES, close, drop.
    """
    folder = tmp_path_factory.mktemp(request.param)
    command = built(DRIVERS / f"vectors.{request.param}", request.param, folder)

    def run(lines):
        text = "".join(" ".join(line) + "\n" for line in lines)
        return ran(command, text)

    return run


def ran(command, text=""):
    # Without it Erlang takes names of files for Latin-1 where no locale is set.
    settings = os.environ | {"ELIXIR_ERL_OPTIONS": "+fnu"}
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, env=settings, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def spelled(text):
    return (text if isinstance(text, bytes) else str(text).encode()).hex() or "-"


def lines_of(path, about, tensors):
    for key, value in about.items():
        yield "meta", spelled(key), spelled(value)
    yield "open", spelled(path)
    for one in tensors:
        shape = ",".join(map(str, one["shape"])) or "-"
        yield "tensor", spelled(one["name"]), one["dtype"], shape, one["bytes"] or "-"
    yield ("close",)


def theirs(path):
    """Return what the safetensors package reads: the tensors, then the metadata."""
    found = {name: (one["dtype"], one["shape"], one["data"].hex()) for name, one in
             deserialize(path.read_bytes())}  # fmt: skip
    with safe_open(path, "numpy") as file:
        return found, file.metadata()


def test_every_vector_is_written_to_the_bit(writer, tmp_path, capsys):
    cases = {}
    for number, entry in enumerate(INDEX):
        tensors = [one for one in entry["tensors"] if one["dtype"] in SIZES]
        cases[tmp_path / f"{number} é.safetensors"] = (entry["metadata"], tensors)
    lines = [line for path, case in cases.items() for line in lines_of(path, *case)]
    assert writer(lines) == ""
    assert set(tmp_path.iterdir()) == set(cases)
    for path, (about, tensors) in cases.items():
        found, said = theirs(path)
        assert found == {one["name"]: (one["dtype"], one["shape"], one["bytes"]) for one in tensors}
        assert said == about | {"format": "lockstep-trace", "version": "1"}
        if tensors:
            assert accepted(path, tensors, capsys)


def accepted(path, tensors, capsys):
    """Say whether our own reader has the same bits, and `lockstep dump validate` no objection."""
    dump = open_dump(path)
    same = all(dump.read(one["name"]).tobytes().hex() == one["bytes"] for one in tensors)
    code = main(["dump", "validate", str(path)])
    said = capsys.readouterr()
    return same and (code, said.err) == (0, "") and ": valid, a trace\n" in said.out


def test_many_tensors_larger_than_any_buffer(writer, tmp_path):
    """By law: what goes in comes out; 200 names, and 3 MB in all."""
    rng = np.random.default_rng(3)
    tensors = [
        {"name": f"x.{size}", "dtype": "U8", "shape": [size], "bytes": rng.bytes(size).hex()}
        for size in (*range(1, 200), 1_500_000)
    ]
    path = tmp_path / "a.safetensors"
    assert writer(lines_of(path, {}, tensors)) == ""
    assert theirs(path)[0] == {one["name"]: ("U8", one["shape"], one["bytes"]) for one in tensors}


def test_numbers_become_the_bits_that_numpy_has(writer, tmp_path):
    path = tmp_path / "a.safetensors"
    assert writer([("open", spelled(path)), ("floats", spelled("x")), ("close",)]) == ""
    expected = np.array([0.1, -0.5], "<f4").tobytes().hex()
    assert theirs(path)[0] == {"x": ("F32", [2], expected)}


ONE = ("tensor", spelled("x"), "F32", "1", "0000803f")
MISTAKES = {
    "a shape of other bytes": ("tensor", spelled("y"), "F32", "2", "0000803f"),
    "sizes below 0": ("tensor", spelled("y"), "F32", "-1,-1", "0000803f"),
    "a name twice": ONE,
    "no name": ("tensor", "-", "F32", "1", "0000803f"),
    "the name of the metadata": ("tensor", spelled("__metadata__"), "F32", "1", "0000803f"),
    "another's name for a dtype": ("tensor", spelled("y"), "float32", "1", "0000803f"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_and_the_rest_is_written(writer, tmp_path, mistake):
    path = tmp_path / "a.safetensors"
    said = writer([("open", spelled(path)), ONE, MISTAKES[mistake], ("close",)])
    assert said.startswith("refused ") and said.count("\n") == 1
    assert theirs(path)[0] == {"x": ("F32", [1], "0000803f")}


def test_a_writer_that_is_given_up_leaves_what_was_there(writer, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    assert writer([("open", spelled(path)), ONE, ("drop",)]) == ""
    assert path.read_bytes() == b"old"
    assert writer([("open", spelled(path)), ONE, ("close",)]) == ""
    assert list(theirs(path)[0]) == ["x"]
    assert list(tmp_path.iterdir()) == [path]


def by_numpy(tokens):
    """Return the taps of the examples' forward pass, in float64."""
    table, head = (np.array(rows) for rows in (forward.TABLE, forward.HEAD))
    embedded = table[tokens]
    normed = embedded / np.sqrt((embedded**2).mean(-1, keepdims=True) + 1e-6) * forward.GAIN
    return {"model.embed_tokens": embedded, "model.norm": normed, "logits": normed @ head.T}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_forward_pass_dumps_its_taps(language, tmp_path, capsys):
    path, python = tmp_path / "taps.safetensors", tmp_path / "python.safetensors"
    command = built(WRITERS / f"examples/forward.{language}", language, tmp_path)
    assert ran([*command, str(path)]) == ""
    forward.main(python)
    dump = open_dump(path)
    taps = by_numpy([3, 1, 4, 1])
    decoded = int(taps["logits"][-1].argmax())
    assert (dump.tokens, dump.decoded) == ([3, 1, 4, 1], [decoded])
    taps |= {f"step.1/{name}": value for name, value in by_numpy([decoded]).items()}
    assert set(dump.shapes) == set(taps)
    for name, right in taps.items():
        assert dump.read(name).dtype == np.float32
        np.testing.assert_allclose(dump.read(name), right[None], rtol=1e-6, atol=1e-6)
    assert main(["diff", str(python), str(path)]) == 0
    assert main(["dump", "validate", str(path)]) == 0
    assert capsys.readouterr().out.endswith("\nno warnings\n")


def test_the_table_of_the_examples_says_something():
    """By hand: one row of each matrix, and the norm of a row whose squares have the mean 4."""
    assert forward.TABLE[3] == [5 / 8, -3 / 8, 0.0, 3 / 8]
    assert forward.HEAD[1] == [0.5, -0.75, -0.25, 0.25]
    right = [1, -1.25, 1.5, -1.75]
    found = forward.norm([2.0, -2.0, 2.0, -2.0])
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, right, strict=True))
