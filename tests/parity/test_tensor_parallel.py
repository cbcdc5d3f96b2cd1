"""`generate --tensor-parallel`: ranks write what one writes. By law, and by hand where it says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.fast.parallel import lost
from lockstep.fast.parallel.launch import Ended
from lockstep.fast.parallel.lost import LEFT_ALONE, TAKEN
from lockstep.parity.cli.cached import REFUSED, check_alike
from lockstep.parity.cli.ranks import say_who_failed
from lockstep.reference.checkpoint.errors import InputError
from tests.long.test_docs_commands import bare, commands
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

ROOT = Path(__file__).parents[2]
IDS = "3,1,4,1,5"


@pytest.fixture
def written(lockstep, tmp_path):
    """Return the JSON of a generation; the ranks that are started write to the file themselves."""

    def run(*arguments):
        target = tmp_path / "out.json"
        said = lockstep("generate", *arguments, "--tokens", IDS, "--max-tokens", 8,
                        "--ignore-eos", "--json", target)  # fmt: skip
        assert said.code == 0, said
        return json.loads(target.read_text())

    return run


def test_the_reference_writes_with_two_ranks_what_it_writes_with_one(written, plain):
    one = written(plain, "--backend", "reference")
    two = written(plain, "--backend", "reference", "--tensor-parallel", 2)
    assert len(one["tokens"]) == 8 and two["tokens"] == one["tokens"]
    assert "tensor_parallel" not in one and "tensor_parallel" not in two


def test_other_decoders_write_with_two_ranks_what_they_write_with_one(written, plain):
    told = ("--backend", "reference", "--decoder", "speculative", "--draft", "lookup")
    one, two = written(plain, *told), written(plain, *told, "--tensor-parallel", 2)
    assert two["tokens"] == one["tokens"] and two["decoder"] == one["decoder"]


@long
def test_they_sample_the_same_tokens_and_send_what_the_arithmetic_says(written, plain):
    """By hand: 2 layers, 48 wide, 120 words; the prompt and 7 steps, 12 tokens in 8 passes.

    A pass adds up once behind the table, and twice a layer, 48 floats a token. It gathers the 60
    scores of a rank for one token.
    """
    told = ("--backend", "mlx", "--temperature", 1.5, "--seed", 3)
    two = written(plain, *told, "--tensor-parallel", 2)
    assert two["tokens"] == written(plain, *told)["tokens"]
    sums, gathers = (2 * 2 + 1) * 8, 8
    given = (2 * 2 + 1) * 48 * 4 * 12, 60 * 4 * 8
    assert two["tensor_parallel"] == {
        "ranks": 2, "sums": sums, "summed_bytes": given[0], "gathers": gathers,
        "gathered_bytes": given[1], "bytes_per_token": sum(given) / 12,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("core", "arguments"),
    [
        ("cannot be cut for 3 ranks: num_attention_heads=4", ["--tensor-parallel", 3]),
        ("put {rank} where the number", ["--tensor-parallel", 2, "--save-cache", "x"]),
        (
            "does not go with --load-cache on the reference",
            ["--tensor-parallel", 2, "--load-cache", "{rank}", "--backend", "reference"],
        ),
        (
            "does not go with --expert-budget",
            ["--tensor-parallel", 2, "--expert-budget", "1MB", "--backend", "mlx"],
        ),
        ("'0' is not a whole number from 1 on", ["--tensor-parallel", 0]),
    ],
)
def test_what_is_refused(refuses, plain, core, arguments):
    refuses(core, "generate", plain, "--tokens", IDS, *arguments)


def test_files_of_several_texts_are_refused_on_every_rank():
    """By hand: what a gather says where one rank's file has a token less."""
    apart = SimpleNamespace(all_gather=lambda part: np.array([part, part - 1]))
    with pytest.raises(InputError, match="not of one text: they have 5, 4 tokens"):
        check_alike(apart, "{rank}", 5)
    check_alike(SimpleNamespace(all_gather=lambda part: np.array([part, part])), "{rank}", 5)


def test_a_rank_ends_where_another_could_not_use_its_file(monkeypatch):
    """By hand: it neither waits nor speaks; the other one says why."""
    monkeypatch.setattr(lost, "end_alone", lambda: sys.exit(LEFT_ALONE))
    other = SimpleNamespace(all_gather=lambda part: np.array([part, [REFUSED]]))
    with pytest.raises(SystemExit, match=str(LEFT_ALONE)):
        check_alike(other, "{rank}", 5)


@long
def test_the_page_shows_what_is_printed(tmp_path):
    """The ranks print by themselves, so the commands run in processes of their own."""
    shown = commands("docs/parallel.md")
    assert len(shown) == 5
    (tmp_path / "parity").symlink_to(ROOT / "parity")
    home = {"PYTHONPATH": str(ROOT)}
    for arguments, lines, code in shown:
        run = [sys.executable, "-m", "lockstep.parity.cli", *arguments]
        said = subprocess.run(
            run, cwd=tmp_path, env=os.environ | home, capture_output=True, text=True, timeout=300
        )
        assert said.returncode == code, said.stderr
        printed = bare(said.stdout + said.stderr)
        assert [line for line in lines if line not in printed] == []


@pytest.mark.parametrize(
    ("ended", "code", "line"),
    [
        (Ended(0), 0, ""),
        (Ended(2, 0, ""), 2, ""),  # rank 0 has said it
        (Ended(2, 1, "lockstep: error: no"), 2, "rank 1 of 4 ended with exit code 2: 'lockstep"),
        (Ended(-9, 3), 70, "rank 3 of 4 was ended by signal 9 (Killed), so all were ended"),
        (Ended(143, 0), 70, "rank 0 of 4 was ended by signal 15 (Terminated), so all were ended"),
        (Ended(129, 2), 70, "rank 2 of 4 was ended by signal 1 (Hangup), so all were ended"),
        (Ended(TAKEN, 1), 2, "other programs took the ports of the ranks"),
        (Ended(LEFT_ALONE, 0), 70, "the ranks lost each other"),
    ],
)
def test_what_is_said_of_ranks_that_fail(capsys, ended, code, line):
    assert say_who_failed(ended, 4) == code
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == (1 if line else 0)
