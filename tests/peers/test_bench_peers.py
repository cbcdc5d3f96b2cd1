"""The peers in the benchmark are given, and do, the same work. By witness."""

import pytest

from lockstep.parity.bench.engines import PEERS, engine_named
from lockstep.parity.bench.measure import prompt_of
from tests.witnesses.conftest import MODELS

PROMPT = prompt_of(20, 90)


def generated(name, folder):
    engine = engine_named(name, folder, ignore_config=())
    made = [engine.prefill(PROMPT)]
    for _ in range(6):
        made.append(engine.step(made[-1]))
    return made


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_makes_the_tokens_that_we_make(name):
    folder = MODELS / "tied_bfloat16"
    assert generated(name, folder) == generated("cpu", folder)


def test_mlx_lm_on_packed_weights():
    folder = MODELS / "affine_4_64"
    assert generated("mlx-lm", folder) == generated("mlx", folder)
