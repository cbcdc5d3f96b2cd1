"""Traces of ranks by the command line, and what reads them. By law."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.parallel.rank_files import open_ranks
from lockstep.reference.checkpoint.errors import InputError

IDS = "3,1,4,1,5"


@pytest.fixture
def traced(lockstep, plain, tmp_path):
    """Write the traces of two ranks of the reference, and of one; return where they lie."""
    where = tmp_path / "run.{rank}.safetensors"
    told = ("trace", plain, "--tokens", IDS, "--decode", 1)
    said = lockstep(*told, "--tensor-parallel", 2, "-o", where)
    assert said.code == 0 and "reference in float32, 2 ranks -> " in said.out, said
    assert lockstep(*told, "-o", tmp_path / "one.safetensors").code == 0
    return where


def test_ranks_write_what_is_then_explained_and_compared(traced, lockstep, plain, tmp_path):
    dumps = open_ranks(str(traced), 2)
    assert [dump.about["rank"] for dump in dumps] == ["0", "1"]
    assert dumps[0].decoded == dumps[1].decoded and len(dumps[0].decoded) == 1
    q = "model.layers.1.self_attn.q_proj"
    whole = open_dump(tmp_path / "one.safetensors").read(q)
    assert np.allclose(np.concatenate([one.read(q) for one in dumps], -1), whole, atol=1e-5)
    said = lockstep("explain", plain, traced, "--tensor-parallel", 2)
    assert (said.code, said.err) == (0, "")
    assert "CLEAN" in said.out and "and 1 step" in said.out
    for left in (traced, tmp_path / "one.safetensors"):
        target = tmp_path / "out.json"
        said = lockstep("diff", left, traced, "--tensor-parallel", 2, "--json", target)
        assert said.code == 0 and "PARITY" in said.out
        assert f"{q} of rank 1" in [tap["name"] for tap in json.loads(target.read_text())["taps"]]


def test_ranks_of_another_checkpoint_are_doubted_in_a_line(traced, lockstep, plain, tied, tmp_path):
    """By hand: one whose embedding has other rows, and one of another width."""
    other = Path(shutil.copytree(plain, tmp_path / "other"))
    for path in other.glob("*.safetensors"):
        tensors = load_file(path)
        if (table := tensors.get("model.embed_tokens.weight")) is not None:
            table[:] = np.random.default_rng(0).standard_normal(table.shape)
            save_file(tensors, path)
    rows = "the embeddings of the dump are no rows of other's"
    width = f"taps of the dump are none of {tied.name}, or of another width"
    for model, core in ((other, rows), (tied, width)):
        said = lockstep("explain", model, traced, "--tensor-parallel", 2)
        assert (said.code, said.err.count("\n")) == (1, 1)
        assert said.err.startswith("lockstep: warning: ") and core in said.err


def test_ranks_of_fast_write_theirs(lockstep, plain, tmp_path):
    """The ranks are processes of their own, of which the first one speaks."""
    where = tmp_path / "{rank}" / "mlx.safetensors"
    for rank in "01":
        (tmp_path / rank).mkdir()
    told = ("trace", plain, "--tokens", IDS, "--backend", "mlx", "--taps", "logits,*.q_proj")
    assert lockstep(*told, "--tensor-parallel", 2, "-o", where).code == 0
    assert [dump.about["backend"] for dump in open_ranks(str(where), 2)] == ["mlx"] * 2
    said = lockstep("explain", plain, where, "--tensor-parallel", 2)
    assert said.code == 0 and "3 taps compared" in said.out


def test_a_folder_has_a_file_for_each_rank(traced, lockstep, plain, refuses, tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    files = [tmp_path / f"run.{rank}.safetensors" for rank in range(2)]
    shutil.copy(files[0], folder / "port_rank-0.safetensors")
    refuses("has no dump of rank 1", "explain", plain, folder, "--tensor-parallel", 2)
    shutil.copy(files[0], folder / "Rank1.safetensors")
    refuses("says that its rank is '0', but should be 1", "explain", plain, folder,
            "--tensor-parallel", 2)  # fmt: skip
    shutil.copy(files[1], folder / "Rank1.safetensors")
    assert lockstep("explain", plain, folder, "--tensor-parallel", 2).code == 0
    shutil.copy(files[1], folder / "1.safetensors")
    with pytest.raises(InputError, match="two dumps are of rank 1"):
        open_ranks(str(folder), 2)


def test_one_of_several_ranks_is_not_taken_for_the_whole(traced, refuses, plain, tmp_path):
    one, first = tmp_path / "one.safetensors", tmp_path / "run.0.safetensors"
    said = "is rank 0 of 2: give all ranks' by {rank} in the name, and --tensor-parallel 2"
    refuses(said, "explain", plain, first)
    for given in ((one, first), (first, one), (first, traced, "--tensor-parallel", 2)):
        refuses(said, "diff", *given)
    folder = tmp_path / "all"
    folder.mkdir()
    shutil.copy(first, folder / "rank0.safetensors")
    refuses("is of several ranks: say how many by", "explain", plain, folder)
    refuses("is of several ranks: say how many by", "diff", one, folder)
    (folder / "logits.npy").write_bytes(b"")  # then it is a folder of tensors
    refuses("logits.npy", "explain", plain, folder)


def test_a_number_of_a_rank_is_written_of_ranks_alone(refuses, plain, tmp_path):
    target, core = tmp_path / "x.{rank}.safetensors", "which goes with --tensor-parallel N"
    refuses(core, "trace", plain, "--tokens", IDS, "-o", target)
    refuses(core, "generate", plain, "--tokens", IDS, "--save-cache", target)
    assert not list(tmp_path.iterdir())


def test_what_is_refused(traced, refuses, plain, tmp_path):
    one = tmp_path / "one.safetensors"
    two = ("--tensor-parallel", 2)
    refuses("put {rank} where the number", "explain", plain, one, *two)
    refuses("is of several ranks: say how many", "explain", plain, traced)
    refuses("is of several ranks: say how many", "diff", traced, one)
    refuses("has no dump of rank 2", "diff", one, traced, "--tensor-parallel", 3)
    refuses("is for `lockstep explain", "diff", one, traced, *two, "--model", plain)
    refuses("is also read by this command", "diff", one, traced, *two, "--json",
            tmp_path / "run.1.safetensors")  # fmt: skip
    shutil.copy(one, tmp_path / "run.2.safetensors")
    refuses("has a dump of rank 2 too, of 2 ranks", "explain", plain, traced, *two)
    refuses("no such file or folder", "explain", plain, tmp_path / "mistyped", *two)
    refuses("RIGHT is to be of ranks, so swap", "diff", traced, one, *two)
    trace = ("trace", plain, "--tokens", IDS, *two)
    refuses("put {rank} where the number", *trace, "-o", one)
    refuses("does not go with --backend transformers", *trace, "--backend", "transformers",
            "-o", traced)  # fmt: skip
    refuses("what caches hold is not written", *trace, "--taps", "*cached_keys", "-o", traced)
    (tmp_path / "x.1").write_text("mine")
    refuses("exists and is no trace", *trace, "-o", tmp_path / "x.{rank}")
