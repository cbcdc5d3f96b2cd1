"""What an error that has no name looks like: each shape made by hand, on a few numbers."""

import numpy as np
import pytest

from lockstep.parity.explaining.said import error_shape
from tests.parity.explaining.ports import explained, port

NAME = "models/untied_float32"
TAP = "model.layers.1.mlp.down_proj"
RIGHT = np.random.default_rng(3).standard_normal((8, 24))


def said(found: np.ndarray) -> dict[str, str]:
    """Return what each description says of an error."""
    names = ("gain", "offset", "order", "positions", "features")
    kinds = {name: getattr(error_shape, name) for name in names}
    with np.errstate(all="ignore"):
        all_said = {name: kind(RIGHT, found, found - RIGHT) for name, kind in kinds.items()}
    return {name: text for name, text in all_said.items() if text}


def test_one_factor():
    assert said(3 * RIGHT)["gain"] == "gain: 3 times the right value"


def test_a_factor_that_leaves_something_is_said_to():
    """By hand: 3 times, and a sixth of that on top."""
    more = np.random.default_rng(4).standard_normal(RIGHT.shape) / 2
    text = said(3 * RIGHT + more)["gain"]
    assert text.startswith("gain: about ") and text.endswith("% of its size besides")
    left = float(text.split()[-5].removesuffix("%"))
    assert left == pytest.approx(100 * 0.5 / np.hypot(3, 0.5), rel=0.15)
    assert float(text.split()[2]) == pytest.approx(3, rel=0.05)


def test_a_factor_next_to_1_that_leaves_something_is_not_said_to_be_1():
    error = RIGHT / 1000 + np.random.default_rng(4).standard_normal(RIGHT.shape) / 5000
    assert said(RIGHT + error)["gain"].startswith("gain: about 1.001 times")


def test_a_factor_for_each_query_of_each_head():
    """By hand: features are keys that a mask hides, so that one a feature fits nearly as well."""
    right = np.repeat(np.exp(RIGHT[:, :8]) * np.tri(8), 3, axis=1)
    right = right.reshape(8, 8, 3).swapaxes(1, 2)  # of each token, 3 heads of 8 keys
    port = right * np.linspace(0.4, 0.9, 24).reshape(8, 3, 1)
    right, port = right.reshape(8, 24), port.reshape(8, 24)
    with np.errstate(all="ignore"):
        text = error_shape.gain(right, port, port - right, heads=3)
    assert text == "gain: each token by a factor of its own in each head, from 0.4 to 0.9"


def test_a_factor_for_each_feature():
    found = said(RIGHT * np.linspace(0.5, 2, 24))
    assert found["gain"] == "gain: each feature by a factor of its own, the same for all tokens"


def test_a_factor_for_each_token():
    found = said(RIGHT * np.linspace(-1, 2, 8)[:, None])
    assert found["gain"] == "gain: each token by a factor of its own, from -1 to 2"


def test_factors_that_are_alike_and_not_one():
    """By hand: from 1.4 to 1.6, each token's own, which one factor would nearly be."""
    found = said(RIGHT * np.linspace(1.4, 1.6, 8)[:, None])
    assert found["gain"] == "gain: each token by a factor of its own, from 1.4 to 1.6"


def test_factors_are_written_with_the_digits_that_tell_them_apart():
    found = said(RIGHT * (1 - np.linspace(0, 4e-6, 8))[:, None])
    assert found["gain"] == "gain: each token by a factor of its own, from 0.999996 to 1"


def test_features_that_are_nought():
    found = said(RIGHT * (np.arange(24) < 20))
    lost = "nought in 4 of 24 features, all others right: 20, 21, 22, 23"
    assert found["gain"] == lost


def test_one_vector_on_top():
    found = said(RIGHT + np.random.default_rng(4).standard_normal(24))
    assert found == {"offset": "offset: the same vector is added to every token"}


def test_another_order():
    found = said(RIGHT[:, ::-1])
    assert found == {"order": "permutation: the right values of each token, in another order"}


def test_numbers_that_moved_by_a_little_are_in_no_other_order():
    """Rounded weights leave numbers in nearly their order, and are no permutation."""
    noise = np.random.default_rng(4).standard_normal(RIGHT.shape)
    assert "order" not in said(RIGHT * (1 + 2e-3 * noise))


@pytest.mark.parametrize("first", [5, 7])
def test_only_beyond_a_length(first):
    wrong = RIGHT + np.random.default_rng(4).standard_normal(RIGHT.shape)
    found = said(np.where(np.arange(8)[:, None] >= first, wrong, RIGHT))
    right = f"the first {first} tokens are right"
    assert found["positions"] == f"beyond a length: {right}, those after are not"


def test_where_the_first_token_alone_is_right_that_is_no_length():
    wrong = RIGHT + np.random.default_rng(4).standard_normal(RIGHT.shape)
    found = said(np.where(np.arange(8)[:, None] >= 1, wrong, RIGHT))
    right = "the first token, which sees itself alone, is right, no other is"
    assert found["positions"] == f"position-dependent: {right}"
    port = np.where(np.arange(8)[:, None] >= 1, wrong, RIGHT)
    of_experts = error_shape.positions(RIGHT, port, port - RIGHT, attends=False)
    assert of_experts == "position-dependent: the first token is right, no other is"


def test_what_is_off_by_rounding_is_right():
    """By hand: five tokens are off by a hundredth of their size, which rounding may do."""
    noise = np.random.default_rng(4).standard_normal(RIGHT.shape)
    port = RIGHT + noise * np.where(np.arange(8) >= 5, 1.0, 0.01)[:, None]
    beyond = "beyond a length: the first 5 tokens are right, those after are not"
    error = port - RIGHT
    assert error_shape.positions(RIGHT, port, error, still=0.05) == beyond
    assert error_shape.positions(RIGHT, port, error) != beyond
    assert error_shape.positions(RIGHT, port, error, still=5.0) is None


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([0], "confined to 1 of 8 tokens: 0"),
        ([3], "confined to 1 of 8 tokens: 3"),
        ([2, 5, 6], "from token 2 on: 3 of 6 are wrong"),
    ],
)
def test_some_tokens_alone(tokens, expected):
    wrong = RIGHT + np.random.default_rng(4).standard_normal(RIGHT.shape)
    found = said(np.where(np.isin(np.arange(8), tokens)[:, None], wrong, RIGHT))
    assert found["positions"] == expected


def test_growing_with_the_position():
    noise = np.random.default_rng(4).standard_normal(RIGHT.shape)
    found = said(RIGHT + noise * np.arange(1, 9)[:, None] ** 3)
    assert found["positions"] == "grows with the position"


def test_a_few_features():
    found = RIGHT.copy()
    found[:, [3, 20]] += np.random.default_rng(4).standard_normal((8, 2))
    assert said(found) == {"features": "confined to 2 of 24 features: 3, 20"}


def test_no_shape_at_all():
    assert said(RIGHT + np.random.default_rng(4).standard_normal(RIGHT.shape)) == {}


WRONG = {
    "no number anywhere: NaN in every place": lambda x: x * np.nan,
    "nought everywhere": lambda x: x * 0,
    "gain: 2 times the right value": lambda x: 2 * x,
    "offset: the same vector is added to every token": lambda x: x + np.cos(np.arange(48)),
    "permutation: the right values of each token, in another order": lambda x: x[..., ::-1],
    "beyond a length: the first 12 tokens are right, those after are not":
        lambda x: x + np.random.default_rng(1).standard_normal(x.shape)
        * (np.arange(20) >= 12)[:, None],
    "confined to 1 of 48 features: 7":
        lambda x: x + np.eye(48)[7] * np.random.default_rng(1).standard_normal((20, 1)),
    "no simple shape: no constant factor, offset, order, position or feature accounts for it":
        lambda x: x + np.random.default_rng(1).standard_normal(x.shape),
}  # fmt: skip


def test_one_number_whose_square_is_none():
    """By hand: float64 holds 1e200, but not its power."""
    rows = port(NAME)["model.embed_tokens"].astype(np.float64)
    rows[0, 5] = 1e200
    (found,) = explained(NAME, {"model.embed_tokens": rows}, ()).unexplained
    assert found.shape == "confined to 1 of 20 tokens: 5"


def test_a_port_of_small_numbers_is_no_gain_of_nearly_nought():
    """By hand: all of such an error is what the right values have; no factor gives the port's."""
    wrong = np.random.default_rng(4).standard_normal(RIGHT.shape) / 20
    assert "gain" not in said(wrong)


@pytest.mark.parametrize("shape", WRONG)
def test_a_diagnosis_says_the_shape_of_what_it_cannot_name(shape):
    taps = port(NAME)
    taps[TAP] = WRONG[shape](taps[TAP]).astype(np.float32)
    found = explained(NAME, taps, ())
    assert {one.tap: one.shape for one in found.unexplained}[TAP] == shape
