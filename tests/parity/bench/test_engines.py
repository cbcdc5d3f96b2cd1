"""Our own engines behind the calls of the benchmark, and peers that fail. Peers that run are in
tests/peers."""

import sys

import pytest

from lockstep.parity.bench.choice import OURS
from lockstep.parity.bench.engines import PEERS, check_installed, loaded
from lockstep.reference import load
from lockstep.reference.checkpoint.errors import InputError
from tests.sampled import sampled

PROMPT = [5, 9, 2, 40]


def engine(name, path, dtype="float32"):
    return loaded(name, path, dtype, shown="the model", ignore_config=())


@pytest.mark.parametrize("name", OURS)
def test_steps_go_on_from_the_prefill(tied, name):
    """By law: fed one by one, the tokens are those of one long forward pass; twice the same."""
    found = engine(name, tied)
    for _ in range(2):
        made = [found.prefill(PROMPT)]
        made += found.decode(made[0], 2)
        logits = load(tied).forward([[*PROMPT, *made[:2]]])[0]
        assert made == logits[-3:].argmax(axis=-1).tolist()


@pytest.mark.parametrize("name", OURS)
def test_the_dtype_is_what_is_computed_in(tied, name):
    assert engine(name, tied, "bfloat16").model.dtype == "bfloat16"


@sampled(0)
def test_a_peer_that_fails_says_so_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"^transformers: cannot run the model: "):
        engine("transformers", tmp_path)


def test_a_peer_that_loads_and_cannot_compute_says_so(tied, monkeypatch):
    class Broken:
        def __init__(self, path, form):
            self.path = path

        def prefill(self, tokens):
            raise IndexError("no kernel")

    monkeypatch.setitem(PEERS, "mlx-lm", Broken)
    with pytest.raises(InputError, match=r"^mlx-lm: cannot run the model: 'no kernel'"):
        engine("mlx-lm", tied)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_not_installed(name, monkeypatch):
    package = {"mlx-lm": "mlx_lm", "llama.cpp": "llama_cpp"}.get(name, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"^{name}: is not installed \({package}\)"):
        check_installed(name)
