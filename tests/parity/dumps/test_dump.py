"""Dumps of every kind, and what a trace's metadata may say. By hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep.parity.dumps import shards
from lockstep.parity.dumps.dump import Dump, nothing_to_read, open_dump
from lockstep.reference.checkpoint.errors import InputError

TRACE = {"format": "lockstep-trace", "version": "1", "tokens": "[1, 2]"}


def trace(path, **about):
    save_file({"logits": np.ones((1, 2, 3), np.float32)}, path, TRACE | about)
    return open_dump(path)


def test_a_trace_says_what_it_was_made_from(tmp_path):
    found = trace(tmp_path / "a.safetensors", decoded="[7]", dtype="float32")
    assert found.is_trace
    assert (found.tokens, found.decoded, found.about["dtype"]) == ([1, 2], [7], "float32")
    assert found.shapes == {"logits": (1, 2, 3)}
    assert found.read("logits").sum() == 6


def test_steps_of_several_tokens():
    """By hand; and so many that going over all of them for each would take hours."""
    about = {"decoded": "[7, 8, 9, 10]", "step_lengths": "[1, 2, 1]"}
    assert Dump(Path("a"), {}, nothing_to_read, about).fed == [[7], [8, 9], [10]]
    many = str([1] * 300_000)
    about = {"decoded": many, "step_lengths": many}
    assert len(Dump(Path("a"), {}, nothing_to_read, about).fed) == 300_000


def test_a_bare_dump_says_nothing(tmp_path):
    arrays = {"logits": np.ones((2, 3), np.float32)}
    save_file(arrays, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", **arrays)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder/logits.npy", arrays["logits"])
    for name in ("a.safetensors", "a.npz", "folder"):
        found = open_dump(tmp_path / name)
        assert (found.is_trace, found.tokens, found.decoded) == (False, None, [])
        np.testing.assert_array_equal(found.read("logits"), arrays["logits"])


def test_another_format_is_a_bare_dump(tmp_path):
    found = trace(tmp_path / "a.safetensors", format="pt", version="9")
    assert not found.is_trace


@pytest.mark.parametrize("version", ["2", "", "one", "1.0", "1000000000", "\x1b[31m"])
def test_another_version_is_refused(tmp_path, version):
    with pytest.raises(InputError, match=r"trace version .* but should be '1'"):
        trace(tmp_path / "a.safetensors", version=version)


@pytest.mark.parametrize(
    "tokens",
    ["", "1, 2", "{}", "[1.0]", "[true]", '["1"]', "[-1]", "[NaN]", "[" * 99999, f"[{'9' * 9999}]"],
)
@pytest.mark.parametrize("key", ["tokens", "decoded"])
def test_nonsense_for_token_ids_is_refused(tmp_path, key, tokens):
    found = trace(tmp_path / "a.safetensors", **{key: tokens})
    with pytest.raises(InputError, match=f"{key} must be a JSON list of token ids"):
        getattr(found, key)


def test_metadata_is_never_interpreted(tmp_path):
    found = trace(tmp_path / "a.safetensors", _target_="os.system", extra=json.dumps({"a": 1}))
    assert found.about["_target_"] == "os.system"


@pytest.mark.parametrize("make", ["safetensors", "npz", "folder"])
def test_a_dump_without_tensors_is_refused(tmp_path, make):
    path = tmp_path / f"a.{make}"
    if make == "safetensors":
        save_file({}, path, TRACE)
    elif make == "npz":
        np.savez(path)
    else:
        path.mkdir()
    with pytest.raises(InputError, match="holds no tensors"):
        open_dump(path)


@pytest.mark.parametrize(
    ("data", "core"),
    [
        (b"", "file is empty"),
        (b"abc", "shorter than the 8-byte header"),
        (b"\x80\x02}q\x00." * 9, "looks like"),
        (b"GGUF" + b"\0" * 60, "looks like"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "exceeds file"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, data, core):
    (tmp_path / "port.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=core):
        open_dump(tmp_path / "port.safetensors")


def test_shards_of_a_folder_are_one_dump(tmp_path):
    """By hand; read whole and in parts, with what any of them says."""
    values = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    save_file({"a": values["a"]}, tmp_path / "x-00001-of-00002.safetensors", TRACE)
    save_file({"b": values["b"]}, tmp_path / "x-00002-of-00002.safetensors")
    found = open_dump(tmp_path)
    assert found.tokens == [1, 2] and found.shapes == {"a": (2, 3), "b": (2,)}
    for name, value in values.items():
        np.testing.assert_array_equal(found.read(name), value)
    np.testing.assert_array_equal(found.parts("a").read(2, 5), values["a"].ravel()[2:5])


@pytest.mark.parametrize("change", [{"name": "a"}, {"tokens": "[1, 3]"}])
def test_shards_that_contradict_each_other_are_refused(tmp_path, change):
    ones = np.ones(2, np.float32)
    save_file({"a": ones}, tmp_path / "1.safetensors", TRACE)
    tokens = change.get("tokens", TRACE["tokens"])
    save_file(
        {change.get("name", "b"): ones}, tmp_path / "2.safetensors", TRACE | {"tokens": tokens}
    )
    with pytest.raises(InputError, match=r"both hold it|another file says another 'tokens'"):
        open_dump(tmp_path)


@pytest.mark.parametrize("other", ["logits.npy", "step.1/logits.npy", "step.1/a.safetensors"])
def test_what_a_folder_of_shards_would_leave_out_is_refused(tmp_path, other):
    ones = np.ones(2, np.float32)
    save_file({"a": ones}, tmp_path / "1.safetensors")
    (tmp_path / "step.1").mkdir()
    if other.endswith("npy"):
        np.save(tmp_path / other, ones)
    else:
        save_file({"b": ones}, tmp_path / other)
    with pytest.raises(InputError, match=r"one dump is of one kind|in a folder below") as caught:
        open_dump(tmp_path)
    assert caught.value.where == f"'{other}'"


def test_shards_are_bounded_together(tmp_path, monkeypatch):
    """By count: no more files are opened than one file's header may hold."""
    save_file({}, tmp_path / "0.safetensors", {"about": "x" * 400})
    for number in range(1, 9):
        (tmp_path / f"{number}.safetensors").hardlink_to(tmp_path / "0.safetensors")
    monkeypatch.setattr(shards, "HEADER_LIMIT", 1000)
    opened = []
    file = shards.SafetensorsFile
    monkeypatch.setattr(shards, "SafetensorsFile", lambda path: opened.append(path) or file(path))
    with pytest.raises(InputError, match="over the limit of 1000 bytes together"):
        open_dump(tmp_path)
    assert len(opened) == 3


def test_a_name_that_two_shards_hold_is_refused_before_a_third_is_opened(tmp_path):
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "1.safetensors")
    (tmp_path / "2.safetensors").hardlink_to(tmp_path / "1.safetensors")
    (tmp_path / "3.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"1\.safetensors and 2\.safetensors both hold it"):
        open_dump(tmp_path)


PICKLED = r"safetensors\.torch\.save_file"


@pytest.mark.parametrize(
    "name", ["port.pt", "port.PT", "port.pth", "port.pkl", "port.bin", "a.ckpt"]
)
def test_a_pickle_is_never_read_and_told_what_to_write(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=PICKLED):
        open_dump(tmp_path / name)
    with pytest.raises(InputError, match=rf"no \.npy, no \.safetensors; .*{PICKLED}"):
        open_dump(tmp_path)


def test_only_a_file_is_a_pickle(tmp_path):
    """A folder may be called so, and so may what is not there, or a safetensors file."""
    ones = np.ones(2, np.float32)
    (tmp_path / "run.pt").mkdir()
    np.save(tmp_path / "run.pt/logits.npy", ones)
    save_file({"logits": ones}, tmp_path / "port.bin")
    assert open_dump(tmp_path / "run.pt").shapes == open_dump(tmp_path / "port.bin").shapes
    with pytest.raises(InputError, match="no such file"):
        open_dump(tmp_path / "absent.pt")


def test_a_folder_of_archives_is_told_to_give_one(tmp_path):
    np.savez(tmp_path / "port.npz", logits=np.ones(2, np.float32))
    with pytest.raises(InputError, match=r"no \.safetensors; 'port\.npz' is a dump of its own"):
        open_dump(tmp_path)
