"""How far two runs are apart. By hand."""

import numpy as np
import pytest

from lockstep.parity.sensitivity.cost import Cost, answered, divergence
from lockstep.parity.sensitivity.examples import Example


def logits(*rows: list[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(rows, np.float32))


def test_divergence():
    """1/2 log(1/2 / 1/4) + 1/2 log(1/2 / 3/4); a scale of all logits' exponentials is nothing."""
    half, quarter = logits([0.5, 0.5]), logits([0.25, 0.75]) + np.float32(3)
    expected = 0.5 * np.log(2) + 0.5 * np.log(2 / 3)
    np.testing.assert_allclose(divergence(half, quarter), [expected], rtol=1e-6)
    assert divergence(half, half) == [0]


@pytest.mark.parametrize("token, right", [(2, True), (1, False)])
def test_an_answer_is_right_to_its_end(token, right):
    """The answer is tokens 1 and `token`, each foretold by the logits of the one before."""
    one = Example((0, 1, token), answer=1, name="?")
    rows = logits([0.1, 0.8, 0.1], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3])
    assert answered(one, rows) is right


def test_what_is_counted():
    cost = Cost("kind", 1, 10)
    asked = Example((0, 1), answer=1, name="first?")
    text = Example((0, 1, 2))
    right, wrong = [0.1, 0.9], [0.9, 0.1]
    model = np.stack([logits(right, right, right), logits(right, right, wrong)])
    packed = np.stack([logits(wrong, right, wrong), logits(right, wrong, wrong)])
    cost.add([asked, text], model, packed)
    found = cost.to_json()
    assert (found["positions"], found["asked"], found["right"]) == (5, 1, 0)  # no padding
    assert (
        found["right_before"] == 1
        and found["lost"] == ["first?"]
        and found["top1_agreement"] == 3 / 5
    )
    apart = 0.8 * np.log(9)
    np.testing.assert_allclose(found["kl_max"], apart, rtol=1e-6)
    np.testing.assert_allclose(found["kl_mean"], 2 * apart / 5, rtol=1e-6)
