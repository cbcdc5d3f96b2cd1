"""Files that are not what they claim: exit 2, one line that names the file, nothing written."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.parity.cli.targets import check_target
from lockstep.parity.dumps.dump import open_dump
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.conftest import MODELS

TRACE = {"format": "lockstep-trace", "version": "1", "tokens": "[1, 2]"}


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def cut_in_the_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])


def lying_header(folder):
    """Claim one row more of a weight than there is, with the file otherwise as it was."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"]["shape"][0] += 1
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def huge_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + path.read_bytes()[8:])


def other_shape(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    save_file(tensors, path)


def missing_tensor(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path)


def git_lfs_pointer(folder):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(text)


def pickle(folder):
    (folder / "model.safetensors").write_bytes(b"\x80\x02}q\x00.")


def pipe(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def no_config(folder):
    (folder / "config.json").unlink()


def broken_config(folder):
    (folder / "config.json").write_text("{")


def unknown_key(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"\x1b[31m::error::": 1}))


@pytest.mark.parametrize(
    ("spoil", "core"),
    [
        (truncated, "model.safetensors"),
        (cut_in_the_header, "exceeds file"),
        (lying_header, "model.norm.weight"),
        (huge_header, "exceeds file"),
        (other_shape, "model.norm.weight"),
        (missing_tensor, "model.norm.weight"),
        (git_lfs_pointer, "Git-LFS"),
        (pickle, "model.safetensors"),
        (pipe, "not a regular file"),
        (no_weights, "safetensors"),
        (no_config, "config.json"),
        (broken_config, "config.json"),
        (unknown_key, "config.json"),
    ],
)
def test_a_spoilt_model_is_refused_by_every_command(refuses, tmp_path, copy, tied, spoil, core):
    spoil(copy)
    before = sorted(copy.iterdir())
    prompt = ("--tokens", "1,2")
    refuses(core, "inspect", copy)
    refuses(core, "taps", copy)
    refuses(core, "check", copy, *prompt)
    refuses(core, "generate", copy, *prompt, "--backend", "mlx")
    refuses(core, "trace", copy, *prompt, "-o", tmp_path / "t")
    save_file({"logits": np.ones((1, 2, 4), np.float32)}, tmp_path / "d", TRACE)
    refuses(core, "diff", tmp_path / "d", tmp_path / "d", "--model", copy)
    assert not (tmp_path / "t").exists()
    assert sorted(copy.iterdir()) == before


def test_a_missing_shard_is_named(refuses, tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(MODELS / "untied_float32", folder)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    for command in (("inspect",), ("check", "--tokens", "1")):
        refuses(shard.name, command[0], folder, *command[1:])


def dump(path, metadata=TRACE, **tensors):
    save_file(tensors or {"logits": np.ones((1, 2, 4), np.float32)}, path, metadata)
    return path


@pytest.mark.parametrize(
    ("core", "metadata", "tensors"),
    [
        ("trace version '2'", TRACE | {"version": "2"}, {}),
        ("trace version 'None'", {"format": "lockstep-trace"}, {}),
        ("tokens must be a JSON list", TRACE | {"tokens": "1,2"}, {}),
        ("from position 1 on", TRACE | {"tokens": "[1, 3]"}, {}),
        ("nothing was compared", TRACE, {"mine": np.ones(3)}),
        ("nothing was compared", TRACE, {"model.layers.٣": np.ones((1, 2, 4))}),
        ("nothing was compared", TRACE, {"model.layers.-1": np.ones((1, 2, 4))}),
        ("two names mean one tap", TRACE, {"logits": np.ones(3), "step.0/logits": np.ones(3)}),
    ],
)
def test_a_spoilt_dump_is_refused(refuses, tmp_path, core, metadata, tensors):
    good = dump(tmp_path / "good")
    bad = dump(tmp_path / "bad", metadata, **tensors)
    refuses(core.replace("'None'", ""), "diff", good, bad)


def test_a_tensor_of_as_many_axes_as_there_may_be_differs_in_a_line(lockstep, tmp_path, plain):
    """By hand: of another shape, and no room for the axis of a batch."""
    lockstep("trace", plain, "--tokens", "1,2", "-o", tmp_path / "good")
    bad = dump(tmp_path / "bad", logits=np.ones((1,) * 64, np.float32))
    for more in ((), ("--model", plain)):
        said = lockstep("diff", tmp_path / "good", bad, *more)
        assert (said.code, said.err) == (1, "")
        assert said.out.startswith("DIVERGED")


def test_what_is_no_dump_is_refused(refuses, tmp_path):
    good = dump(tmp_path / "good")
    whole = good.read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-1])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name in ("cut", "empty", "text.npz", "folder", "missing", "a\0b", ""):
        refuses("", "diff", good, tmp_path / name if name else "")
        refuses("", "diff", tmp_path / name if name else "", good)


@pytest.mark.parametrize("target", ["", "missing/x", ".", "a\0b", "x" * 300])
def test_a_target_that_cannot_be_written_is_refused_before_anything_runs(
    refuses, monkeypatch, tmp_path, plain, target
):
    monkeypatch.setattr("lockstep.reference.model.Model.stages", None)
    path = f"{tmp_path}/{target}"
    refuses("", "trace", plain, "--tokens", "1", "-o", path)
    refuses("", "check", plain, "--tokens", "1", "--json", path) if len(target) < 300 else None
    assert list(tmp_path.iterdir()) == []


def test_a_target_must_not_be_an_input(refuses, tmp_path, copy):
    left, right = dump(tmp_path / "left"), dump(tmp_path / "right")
    (tmp_path / "link").symlink_to(right)
    before = right.read_bytes()
    for target in (left, right, tmp_path / "link"):
        refuses("is also read by this command", "diff", left, right, "--json", target)
    for inside in (copy / "t", copy / "config.json"):
        refuses("lies in the folder that is read", "inspect", copy, "--json", inside)
        refuses("lies in the folder that is read", "trace", copy, "--tokens", "1", "-o", inside)
    (tmp_path / "folder").mkdir()
    for same in (tmp_path / "t", f"{tmp_path}/folder/../t"):
        refuses("name two files", "trace", copy, "--tokens", "1", "-o", tmp_path / "t",
                "--json", same)  # fmt: skip
    refuses("no name of a file", "inspect", copy, "--json", "")
    assert right.read_bytes() == before and open_dump(left)


def test_a_link_of_the_system_is_not_replaced(tmp_path):
    """By hand: where /dev/stdout leads. Where there is no /proc, its folder does not exist."""
    with (tmp_path / "open").open("wb") as file:
        link = Path(f"/proc/self/fd/{file.fileno()}")
        with pytest.raises(InputError, match=r"link of the system to an open file|does not exist"):
            check_target(link, [])
        check_target(tmp_path / "open", [])
