"""Engines in processes of their own: what they answer, and what becomes of those that fail."""

import signal

import pytest

from lockstep.parity.bench.choice import Choice
from lockstep.parity.bench.workers import Worker, Workers
from lockstep.reference import load
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from tests.sampled import sampled

CPU, PROMPT = Choice("cpu", None), [5, 9, 2, 40]


@pytest.fixture
def worker():
    found = Worker(CPU, "float32")
    yield found
    found.close()


def test_a_round_in_another_process(worker, tied):
    """By law: the tokens of one long pass; a process that has NumPy takes more than 10 MB."""
    worker.load(open_checkpoint(tied), [])
    found = worker.run(PROMPT, 2)
    logits = load(tied).forward([[*PROMPT, *found.tokens[:2]]])[0]
    assert found.tokens == logits[-3:].argmax(axis=-1).tolist()
    assert found.prefill_s > 0 and found.decode_s > 0 and 10e6 < found.peak_bytes < 10e9
    limits = worker.limits(4)
    assert limits.keys() == {"bytes_per_second", "operations_per_second", "decode", "prefill",
                             "bytes_per_token", "operations"}  # fmt: skip
    assert all(value > 0 for value in limits.values())
    config, behind = load(tied).config, worker.limits(9)["bytes_per_token"]
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert behind - limits["bytes_per_token"] == 5 * 4 * numbers  # keys and values of five tokens


@sampled(0)
def test_memory_is_of_one_process_alone(worker, tied):
    """By law: what this process has taken does not count for that one."""
    ours = bytearray(400_000_000)
    worker.load(open_checkpoint(tied), [])
    assert worker.run(PROMPT, 1).peak_bytes < len(ours)


def test_a_refusal_comes_back_as_one(worker, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    worker.ask("start", name="cpu")
    with pytest.raises(InputError, match=r"config\.json"):
        worker.ask("load", path=str(tmp_path), form="float32", shown="it", ignore_config=[])
    worker.ask("start", name="cpu")  # it goes on


def test_a_process_that_is_killed(worker):
    worker.ask("start", name="cpu")
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait()
    with pytest.raises(InputError, match=r"^cpu: its process was ended by signal 9$"):
        worker.ask("run", prompt=[1], decode=1)


def test_a_process_that_fails_says_its_last_line(worker):
    core = r"^cpu: its process ended with exit code 1: .AttributeError: .*no_such_request"
    with pytest.raises(InputError, match=core):
        worker.ask("no_such_request")


def test_a_peer_is_left_out_and_one_of_ours_is_an_error(tied, monkeypatch):
    monkeypatch.setattr(Worker, "load", lambda *arguments: refuse())
    told = {"dtype": None, "ignore_config": []}
    with Workers() as workers:
        workers.add(Choice("mlx-lm", None), open_checkpoint(tied), ours=False, **told)
        assert (workers.engines, workers.left_out) == ({}, ["it: cannot"])
        with pytest.raises(InputError, match="it: cannot"):
            workers.add(CPU, open_checkpoint(tied), ours=True, **told)


def test_a_peer_that_ends_in_its_turn_is_left_out_and_closed(worker):
    worker.choice, error = Choice("mlx-lm", None), InputError("mlx-lm", "its process ended")
    ours = Worker(CPU, "float32")
    with Workers() as workers:
        workers.engines |= {"mlx-lm": worker, "cpu": ours}
        workers.leave_out("mlx-lm", error)
        assert (list(workers.engines), workers.left_out) == (["cpu"], [str(error)])
        assert worker.process.poll() is not None
        with pytest.raises(InputError, match="its process ended"):
            workers.leave_out("cpu", error)


def refuse():
    raise InputError("it", "cannot")
