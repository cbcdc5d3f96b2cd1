"""Norms of heads that take each other's gains. By loop, as in `test_layers.py`."""

import pytest

from tests.parity.explaining.ports import explained, ids, port
from tests.parity.faults.test_layers import GEMMA, LAYER, QWEN, close, right, unit, weight, wrong

MIXED = "qk-norm-gains-mixed"
CASES = [
    (QWEN, "keys by that of q_norm", "k_norm", "k_proj", "q_norm"),
    (QWEN, "queries by that of k_norm", "q_norm", "q_proj", "k_norm"),
    (GEMMA, "values by that of k_norm", "v_norm", "k_proj", "k_norm"),
]


@pytest.mark.parametrize(("name", "variant", "tap", "read", "gain"), CASES, ids=str)
def test_a_norm_takes_the_gain_of_another(name, variant, tap, read, gain):
    path = f"{LAYER}.self_attn"
    raw = right(name, f"{path}.{read}").reshape(right(name, f"{path}.{tap}").shape)
    expected = unit(raw) * weight(name, f"{path}.{gain}.weight")
    close(wrong(name, f"{path}.{tap}", MIXED, variant), expected)


@pytest.mark.parametrize(("name", "variant"), [case[:2] for case in CASES], ids=str)
def test_which_gain_it_is_is_said_and_no_more(name, variant):
    found = explained(name, port(name, [f"{MIXED}[{variant}]"]))
    assert ids(found) == {MIXED} and not found.unexplained
    assert found.faults[0].variant == variant
