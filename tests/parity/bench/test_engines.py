"""Our own engines behind the calls of the benchmark. The peers' are in tests/peers."""

import pytest

from lockstep.parity.bench.engines import OURS, PEERS, engine_named
from lockstep.reference import load
from lockstep.reference.checkpoint.errors import InputError

PROMPT = [5, 9, 2, 40]


@pytest.mark.parametrize("name", OURS)
def test_steps_go_on_from_the_prefill(tied, name):
    """By law: fed one by one, the tokens are those of one long forward pass; twice the same."""
    engine = engine_named(name, tied, ignore_config=())
    for _ in range(2):
        made = [engine.prefill(PROMPT)]
        made += [engine.step(made[0])]
        logits = load(tied).forward([[*PROMPT, made[0]]])[0]
        assert made == logits[-2:].argmax(axis=-1).tolist()


def test_an_unknown_engine_is_refused(tied):
    with pytest.raises(InputError, match="'vllm', but should be one of reference, mlx, cpu"):
        engine_named("vllm", tied, ignore_config=())


def test_a_peer_that_fails_says_so_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"^transformers: (cannot run|is not installed)"):
        engine_named("transformers", tmp_path, ignore_config=())


def test_a_peer_that_loads_and_cannot_compute_says_so(tied, monkeypatch):
    class Broken:
        def __init__(self, path):
            self.path = path

        def prefill(self, tokens):
            raise IndexError("no kernel")

    monkeypatch.setitem(PEERS, "mlx-lm", Broken)
    with pytest.raises(InputError, match=r"^mlx-lm: cannot run .*: 'no kernel'"):
        engine_named("mlx-lm", tied, ignore_config=())
