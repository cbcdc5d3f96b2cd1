"""Ranks in processes of their own give the logits of one. By law: a sum may be made of parts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast
from lockstep.fast.parallel.launch import free_ports, launch
from lockstep.fast.parallel.lost import FAILED, LEFT_ALONE, LINE, STARTER
from lockstep.parity.arrays import to_numpy

WITNESSES = Path(__file__).parents[2] / "witnesses"
SCRIPT = Path(__file__).parent / "one_rank.py"
LIMIT = 2e-5  # of the standard deviation of the logits
# An architecture each, packed or not; biases, key heads that ranks share, tables that are adapted.
MODELS = (
    "llama/biased_llama3", "models/affine_4_64", "gpt2/packed", "qwen3_moe/packed",
    "gemma4/effective", "gemma4/sparse", "gguf/qwen3_mixed.gguf",
)  # fmt: skip
ADAPTED = (("models/tied_bfloat16", "mlx_lora"), ("models/affine_4_64", "peft_tables"))


def ran(out: Path, ranks: int, backend: str, models: list[str]) -> list[dict[str, np.ndarray]]:
    """Return what each of so many ranks made of each model."""
    command = [sys.executable, str(SCRIPT), str(ranks), str(out), backend, *models]
    ended = launch(command, ranks)
    assert ended.code == 0, ended
    return [dict(np.load(out / f"{rank}.npz")) for rank in range(ranks)]


def check(found: list[dict[str, np.ndarray]], backend: str, models: list[str]) -> None:
    """Hold every rank's logits against those of one; ranks agree in every bit."""
    for name in models:
        path, _, adapter = name.partition("=")
        one = fast.load(path, adapter or None, backend=backend)
        rng = np.random.default_rng(7)
        whole = to_numpy(one.forward(rng.integers(0, one.config.vocab_size, (2, 9))))
        for kind in ("whole", "steps"):
            each = [rank[f"{name}:{kind}"] for rank in found]
            assert all(np.array_equal(other, each[0]) for other in each[1:])
            assert np.abs(each[0] - whole).max() / whole.std() < LIMIT, name


@pytest.mark.parametrize("backend", ["mlx", "cpu"])
def test_two_ranks_give_the_logits_of_one(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # compiling takes longer than all the rest
    names = MODELS if backend == "mlx" else MODELS[1:5]  # tests/peers has all of them
    models = [str(WITNESSES / name) for name in names]
    models += [f"{WITNESSES / base}={WITNESSES / 'adapters' / one}" for base, one in ADAPTED]
    check(ran(tmp_path, 2, backend, models), backend, models)


def test_a_rank_that_dies_ends_the_others(tmp_path):
    """By hand: rank 1 kills itself, rank 0 would sleep for an hour."""
    text = "import os,time; os.kill(os.getpid(), 9) if os.environ['MLX_RANK'] == '1' else 0;"
    began = time.monotonic()
    ended = launch([sys.executable, "-c", text + "time.sleep(3600)"], 2)
    assert (ended.code, ended.rank) == (-9, 1)
    assert time.monotonic() - began < 60  # an hour, if nobody ended it


def test_a_rank_that_was_left_alone_is_not_the_cause():
    """By hand: rank 0 says that it lost another, rank 1 ends with 3 and a word."""
    text = f"""
import os, sys, time
if os.environ["MLX_RANK"] == "0":
    sys.exit({LEFT_ALONE})
time.sleep(0.2)
sys.exit("the reason")
"""
    ended = launch([sys.executable, "-c", text], 2)
    assert (ended.code, ended.rank, ended.said) == (1, 1, "the reason")


def test_a_rank_that_ignores_being_told_to_end_is_ended():
    text = """
import os, signal, sys, time
if os.environ["MLX_RANK"] == "0":
    sys.exit(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(3600)
"""
    assert launch([sys.executable, "-c", text], 3).code == 5


def test_ranks_know_who_they_are_and_where_the_others_listen(tmp_path):
    text = f"""
import json, os
hosts = json.load(open(os.environ["MLX_HOSTFILE"]))
with open(os.path.join({str(tmp_path)!r}, os.environ["MLX_RANK"]), "w") as file:
    json.dump(hosts, file)
"""
    assert launch([sys.executable, "-c", text], 3).code == 0
    said = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert said[0] == said[1] == said[2] and said[0].count("127.0.0.1:") == 3


@pytest.mark.parametrize("started", [False, True])
def test_a_rank_that_the_ring_complains_to_ends(started):
    """By hand: the complaints that MLX writes before it waits for ever."""
    text = """
import os, sys, time
from lockstep.fast.parallel.lost import listen_to_ring
listen_to_ring()
os.write(2, b"a library says\\n[ring] Sending to socket 4 failed with errno 32\\n")
print("as before", file=sys.stderr)
time.sleep(0.5)
os.write(2, b"[ring] Too many send/recv errors. Failing pending tasks...\\n")
time.sleep(3600)
"""
    given = {STARTER: str(os.getpid())} if started else {}
    ended = subprocess.run(
        [sys.executable, "-c", text], env=os.environ | given, capture_output=True, timeout=60
    )
    said = [b"a library says", b"as before", *([] if started else [LINE.rstrip()])]
    assert ended.returncode == (LEFT_ALONE if started else FAILED)
    assert sorted(ended.stderr.splitlines()) == sorted(said)


def test_a_rank_ends_with_the_one_who_started_it():
    """By hand: whoever started it is said to be a process that never was its parent."""
    text = "import time; from lockstep.fast.parallel.lost import follow_starter; follow_starter()"
    command = [sys.executable, "-c", f"{text}; time.sleep(3600)"]
    ended = subprocess.run(command, env=os.environ | {STARTER: "999999999"}, timeout=60)
    assert ended.returncode == LEFT_ALONE


def test_ports_are_distinct():
    assert len(set(free_ports(5))) == 5
