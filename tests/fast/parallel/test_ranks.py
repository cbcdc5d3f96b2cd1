"""Ranks in processes of their own give the logits of one. By law: a sum may be made of parts."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep import fast
from lockstep.fast.parallel.launch import GRACE, TRIES, Ended, end, free_ports, launch, launch_once
from lockstep.fast.parallel.lost import FAILED, LEFT_ALONE, LINE, STARTER, TAKEN
from lockstep.parity.arrays import to_numpy
from tests.fast.parallel.one_rank import in_flight
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each

WITNESSES = Path(__file__).parents[2] / "witnesses"
SCRIPT = Path(__file__).parent / "one_rank.py"
LIMIT = 2e-5  # of the standard deviation of the logits
# An architecture each, packed or not; biases, key heads that ranks share, tables that are adapted.
MODELS = (
    "llama/biased_llama3", "models/affine_4_64", "gpt2/packed", "qwen3_moe/packed",
    "gemma4/effective", "gemma4/sparse", "gguf/qwen3_mixed.gguf",
)  # fmt: skip
ADAPTED = (("models/tied_bfloat16", "mlx_lora"), ("models/affine_4_64", "peft_tables"),
           ("models/tied_bfloat16", "mlx_dora"))  # fmt: skip


def ran(out: Path, ranks: int, backend: str, models: list[str]) -> list[dict[str, np.ndarray]]:
    """Return what each of so many ranks made of each model, without compiling anything.

    That would take longer than all the rest. Here Numba is as it was: it looks at the variable
    whenever it compiles.
    """
    command = [sys.executable, str(SCRIPT), str(ranks), str(out), backend, *models]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
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
    texts = in_flight(fast.load(models[0], backend=backend))
    assert len(texts) == 8 and (texts[:, 1] >= 0).all()
    assert all(np.array_equal(rank["texts"], texts) for rank in found)


@long
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
def test_two_ranks_give_the_logits_of_one(tmp_path, backend):
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


def test_a_rank_that_was_left_alone_is_not_the_cause(tmp_path):
    """By hand: rank 1 ends with 1 and a word; rank 0 waits for that, and says that it lost it."""
    ended = launch(in_turn(tmp_path, first=(1, 1), then=LEFT_ALONE), 2)
    assert (ended.code, ended.rank, ended.said) == (1, 1, "the reason")


def test_a_rank_that_is_done_before_the_others_has_not_failed(tmp_path):
    """By hand: rank 0 ends well, as when its reader has enough; rank 1 is left alone by that."""
    assert launch(in_turn(tmp_path, first=(0, 0), then=LEFT_ALONE), 2) == Ended(0)
    (tmp_path / "ended").unlink()
    ended = launch(in_turn(tmp_path, first=(0, 0), then=3), 2)
    assert (ended.code, ended.rank) == (3, 1)


def in_turn(folder: Path, *, first: tuple[int, int], then: int) -> list[str]:
    """Return a command of two ranks: the first one ends with a code, then the other with its."""
    text = f"""
import os, time
place = {str(folder / "ended")!r}
if os.environ["MLX_RANK"] == "{first[0]}":
    os.write(2, b"the reason\\n")
    open(place, "w").close()
    os._exit({first[1]})
while not os.path.exists(place):
    time.sleep(0.01)
os._exit({then})
"""
    return [sys.executable, "-c", text]


def test_a_rank_that_ignores_being_told_to_end_is_ended():
    text = """
import os, signal, sys, time
if os.environ["MLX_RANK"] == "0":
    sys.exit(5)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(3600)
"""
    assert launch([sys.executable, "-c", text], 3).code == 5


def test_ranks_that_do_not_end_have_one_deadline_together(monkeypatch):
    """By hand, on a clock of its own: five ranks that never end by themselves."""
    now, ended = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Stubborn:
        killed = False
        poll = terminate = staticmethod(lambda: None)

        def kill(self):
            self.killed = True

        def wait(self, timeout=None):
            if not self.killed:
                assert timeout is not None
                now[0] += timeout
                raise subprocess.TimeoutExpired("rank", timeout)
            ended.append(self)

    ranks: list[Any] = [SimpleNamespace(process=Stubborn()) for _ in range(5)]
    end(ranks)
    assert len(ended) == 5 and now[0] == GRACE


@long
def test_ranks_begin_again_where_another_program_takes_a_port(monkeypatch):
    """By law: MLX cannot listen on a port where this test listens."""
    text = "from lockstep.fast.parallel.group import join; join(2)"
    command = [sys.executable, "-c", text]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = [[other.getsockname()[1], *free_ports(1)]]
        found = lambda count: taken.pop() if taken else free_ports(count)  # noqa: E731
        monkeypatch.setattr("lockstep.fast.parallel.launch.free_ports", found)
        assert launch(command, 2) == Ended(0) and taken == []


def test_ranks_do_not_begin_again_for_ever(tmp_path):
    """By hand: every port is taken; the ranks leave a letter each time."""
    text = f"""
import os
with open({str(tmp_path / "begun")!r}, "a") as file:
    file.write("x")
os._exit({TAKEN})
"""
    assert launch([sys.executable, "-c", text], 1).code == TAKEN
    assert (tmp_path / "begun").read_text() == "x" * TRIES


def test_a_port_that_is_taken_is_the_cause_of_all_else(tmp_path):
    assert launch_once(in_turn(tmp_path, first=(0, 2), then=TAKEN), 2).code == TAKEN


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


def test_a_rank_ends_where_nobody_reads_what_it_says():
    """By law: what is written to a pipe without a reader is an error."""
    text = """
import os, time
from lockstep.fast.parallel.lost import listen_to_ring
listen_to_ring()
os.write(2, b"a library says\\n[ring] Too many send/recv errors. Failing pending tasks...\\n")
time.sleep(3600)
"""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as nobody:
        ended = subprocess.run([sys.executable, "-c", text], stderr=nobody, timeout=60)
    assert ended.returncode == FAILED


def test_a_rank_ends_with_the_one_who_started_it():
    """By hand: whoever started it is said to be a process that never was its parent."""
    text = "import time; from lockstep.fast.parallel.lost import follow_starter; follow_starter()"
    command = [sys.executable, "-c", f"{text}; time.sleep(3600)"]
    ended = subprocess.run(command, env=os.environ | {STARTER: "999999999"}, timeout=60)
    assert ended.returncode == LEFT_ALONE


def test_ports_are_distinct():
    assert len(set(free_ports(5))) == 5
