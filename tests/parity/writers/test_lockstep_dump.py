"""The writer that ports copy: alone in a folder, without any package, and read back by two readers.

By witness: the safetensors package reads what it writes.
"""

import re
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.writers import lockstep_dump
from lockstep.parity.writers.lockstep_dump import TraceWriter

PORT = """
import sys
sys.path.insert(0, ".")
from array import array
from lockstep_dump import TraceWriter

with TraceWriter("port.safetensors", model="my port", dtype="float32", tokens=[5, 6, 7]) as dump:
    dump.add("model.embed_tokens", [0.5, -1.25, 3.0] * 4, shape=(1, 3, 4))
    dump.add("logits", array("d", [1, 2, 3]), shape=(1, 3, 1), dtype="F64")
    dump.add("odd", b"\\x01", shape=(1,), dtype="BOOL")
    dump.add("step.1/logits", [0.1], shape=(1, 1, 1))
print(sorted(set(sys.modules) & {"numpy", "site", "lockstep", "safetensors"}))
"""


def test_a_port_without_any_package_can_write_a_trace(tmp_path):
    shutil.copy(lockstep_dump.__file__, tmp_path)
    (tmp_path / "port.py").write_text(PORT)
    command = [sys.executable, "-S", "-I", "port.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr

    path = tmp_path / "port.safetensors"
    theirs, ours = load_file(path), open_dump(path)
    assert ours.is_trace and ours.tokens == [5, 6, 7] and ours.about["model"] == "my port"
    assert (
        set(theirs) == set(ours.shapes) == {"model.embed_tokens", "logits", "odd", "step.1/logits"}
    )
    for name, array_ in theirs.items():
        assert array_.dtype == ours.read(name).dtype
        np.testing.assert_array_equal(array_, ours.read(name))
    np.testing.assert_array_equal(theirs["logits"], np.array([1.0, 2, 3]).reshape(1, 3, 1))
    assert theirs["model.embed_tokens"][0, 1].tolist() == [-1.25, 3.0, 0.5, -1.25]
    with safe_open(path, "numpy") as file:
        assert file.metadata()["format"] == "lockstep-trace"
    assert {item.name for item in tmp_path.iterdir()} - {"__pycache__"} == {
        "lockstep_dump.py",
        "port.py",
        "port.safetensors",
    }


@pytest.mark.parametrize("dtype", sorted(lockstep_dump.SIZES))
def test_every_dtype_is_the_one_that_the_package_reads(tmp_path, dtype):
    data = bytes([0, 1]) * lockstep_dump.SIZES[dtype]
    with TraceWriter(tmp_path / "a.safetensors") as dump:
        dump.add("x", data, shape=(2,), dtype=dtype)
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        assert file.get_slice("x").get_dtype() == dtype
        assert file.get_slice("x").get_shape() == [2]
    assert open_dump(tmp_path / "a.safetensors").read("x").tobytes() == data


@pytest.mark.parametrize("code", sorted(lockstep_dump.CODES.values()))
def test_lists_become_what_an_array_of_them_is(tmp_path, code):
    dtype = next(tag for tag, one in lockstep_dump.CODES.items() if one == code)
    with TraceWriter(tmp_path / "a.safetensors") as dump:
        dump.add("x", [1, 2, 3], shape=(3,), dtype=dtype)
        dump.add("y", array(code, [1, 2, 3]), shape=(3, 1), dtype=dtype)
        dump.add("nothing", [], shape=(0, 4), dtype=dtype)
    found = load_file(tmp_path / "a.safetensors")
    assert found["x"].tolist() == found["y"].ravel().tolist() == [1, 2, 3]
    assert found["nothing"].shape == (0, 4)


def test_a_view_is_written_row_by_row(tmp_path):
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3).T
    with TraceWriter(tmp_path / "a.safetensors") as dump:
        dump.add("x", numbers, shape=numbers.shape)
    np.testing.assert_array_equal(load_file(tmp_path / "a.safetensors")["x"], numbers)


@pytest.mark.parametrize(
    ("call", "core"),
    [
        (lambda dump: dump.add("x", [1.0], shape=(2,)), "4 bytes, but"),
        (lambda dump: dump.add("x", [1.0], shape=(-1, -1)), "4 bytes, but"),
        (lambda dump: dump.add("x", [1.0], shape=(1,), dtype="F33"), "should be one of F64"),
        (lambda dump: dump.add("x", [1.0], shape=(1,), dtype="BF16"), "give its bytes"),
        (lambda dump: dump.add("__metadata__", [1.0], shape=(1,)), "was written already"),
        (lambda dump: [dump.add("x", [1.0], shape=(1,)) for _ in range(2)], "was written already"),
    ],
)
def test_a_mistake_is_told_and_leaves_nothing(tmp_path, call, core):
    def write() -> None:
        with TraceWriter(tmp_path / "a.safetensors") as dump:
            call(dump)

    with pytest.raises(ValueError, match=core):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_refused_tensor_leaves_the_writer_usable(tmp_path):
    with TraceWriter(tmp_path / "a.safetensors") as dump:
        with pytest.raises(ValueError, match="bytes, but"):
            dump.add("x", [1.0, 2.0], shape=(3,))
        dump.add("x", [1.0, 2.0, 3.0], shape=(3,))
    assert load_file(tmp_path / "a.safetensors")["x"].tolist() == [1, 2, 3]


def test_what_was_there_stays_until_the_new_file_is_complete(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    first, second = TraceWriter(path), TraceWriter(path)  # two writers do not meet
    second.add("x", [2.0], shape=(1,))
    first.discard()
    first.discard()
    assert path.read_bytes() == b"old"
    second.close()
    assert load_file(path)["x"].tolist() == [2]
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_known_at_the_end_is_said_then(tmp_path):
    with TraceWriter(tmp_path / "a.safetensors", model="m") as dump:
        dump.add("x", [1.0], shape=(1,))
        dump.say(decoded=[7, 5], model="n")
    found = open_dump(tmp_path / "a.safetensors")
    assert (found.decoded, found.about["model"]) == ([7, 5], "n")


IMPORTS = {
    "hpp": r"^#include (?!<[a-z_]+>$)",
    "rs": r"^use (?!std::)|extern crate",
    "ex": r"\bMix\.|\brequire |\bimport ",
    "swift": r"^import (?!Foundation$)",
}


@pytest.mark.parametrize("language", IMPORTS)
def test_a_writer_of_another_language_needs_its_own_library_alone(language):
    folder = Path(lockstep_dump.__file__).parent
    source = (folder / f"lockstep_dump.{language}").read_text(encoding="utf-8")
    assert re.findall(IMPORTS[language], source, re.MULTILINE) == []
    assert 80 < len(source.splitlines()) < 150
    assert (
        folder / "examples" / f"forward.{language.replace('hpp', 'cpp').replace('ex', 'exs')}"
    ).exists()


def test_what_may_not_have_been_run_says_so():
    """The tests fetch no compiler of Swift."""
    folder = Path(lockstep_dump.__file__).parent
    said = (folder / "lockstep_dump.swift").read_text(encoding="utf-8").replace("//", " ")
    assert "The tests run it where there is a compiler, but fetch none" in " ".join(said.split())
    example = (folder / "examples/forward.swift").read_text(encoding="utf-8")
    assert "Run with Swift 6.0.3, as lockstep_dump.swift." in example


def test_the_writer_has_no_dependencies_and_is_short():
    source = Path(lockstep_dump.__file__).read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    modules = {line.split()[1] for line in lines}
    assert modules <= set(sys.stdlib_module_names)
    assert len(source.splitlines()) < 120
