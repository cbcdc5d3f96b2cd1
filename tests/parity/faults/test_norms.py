"""The wrong norms, each against a plain loop over its formula, or by hand."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Conflict, Value
from lockstep.reference import portions
from tests.draws import normal
from tests.parity.faults.hand_made import call, graph_of, one_call, variant, wrong

EPS = 0.02
ROW = [3.0, -1.0, 0.5, 2.0, -0.25, 1.5]
GAIN = [1.0, 0.5, 2.0, -1.0, 0.25, 3.0]
BIAS = [0.5, 0.0, -1.0, 2.0, 1.0, 0.25]
N = len(ROW)
PLACE = "self_attn.q_norm"


def power(row):
    return sum(value * value for value in row) / len(row)


def by_root(under):
    return [value / math.sqrt(under) * gain for value, gain in zip(ROW, GAIN, strict=True)]


def merged():
    """Two halves whose sums of squares are 10.25 and 6.3125; three elements each."""
    left, right = 9 + 1 + 0.25, 4 + 0.0625 + 2.25
    return (left + right + (right - left) ** 2 * 3 * 3 / 6) / N


MEAN = sum(ROW) / N
VARIANCE = power([value - MEAN for value in ROW])
RMS_CASES = {
    ("rms-eps-wrong", "eps = 1e-05"): by_root(power(ROW) + 1e-5),
    ("rms-eps-wrong", "eps = 0"): by_root(power(ROW)),
    ("sub-norm-eps-default", "eps = 1e-06"): by_root(power(ROW) + 1e-6),
    ("norm-eps-outside-sqrt", ""): by_root((math.sqrt(power(ROW)) + EPS) ** 2),
    ("norm-eps-inflated-by-rescale", ""): by_root(power(ROW) + EPS * 9),
    ("layernorm-unbiased-variance", "in an RMS norm"): by_root(power(ROW) * N / (N - 1) + EPS),
    ("l2norm-vs-rmsnorm", ""): by_root(power(ROW) * N + EPS),
    ("norm-root-missing", ""): by_root((power(ROW) + EPS) ** 2),
    ("norm-parallel-merge-wrong", "of two halves"): by_root(merged() + EPS),
    ("norm-plus-one-twice", ""): [
        value / math.sqrt(power(ROW) + EPS) * (gain + 1)
        for value, gain in zip(ROW, GAIN, strict=True)
    ],
    ("norm-plus-one-missing", ""): [
        value / math.sqrt(power(ROW) + EPS) * (gain - 1)
        for value, gain in zip(ROW, GAIN, strict=True)
    ],
    ("layernorm-for-rmsnorm", "x / (s + eps) * w, s of n - 1"): by_root(
        (math.sqrt(VARIANCE * N / (N - 1)) + EPS) ** 2
    ),
    ("layernorm-for-rmsnorm", ""): [
        (value - MEAN) / math.sqrt(VARIANCE + EPS) * gain
        for value, gain in zip(ROW, GAIN, strict=True)
    ],
    ("layernorm-for-rmsnorm", "x / std(x) * w"): by_root(power(ROW) - (sum(ROW) / N) ** 2 + EPS),
    ("qk-norm-missing", ""): ROW,
}


@pytest.mark.parametrize("case", RMS_CASES, ids=" ".join)
def test_a_wrong_rms_norm_is_its_formula(case):
    """By loop."""
    x, gain = np.array([[ROW]]), np.array(GAIN)
    found = one_call(*case, "rms_norm", x, gain, place=PLACE, eps=EPS)
    np.testing.assert_allclose(found[0, 0], RMS_CASES[case], rtol=1e-12)


def test_sums_of_squares_in_norms_of_the_stream_and_of_heads_are_two_things():
    """By loop."""
    x, gain, name = np.array([[ROW]]), np.array(GAIN), "of the stream"
    found = one_call("l2norm-vs-rmsnorm", name, "rms_norm", x, gain, place="model.norm", eps=EPS)
    np.testing.assert_allclose(found[0, 0], by_root(power(ROW) * N + EPS), rtol=1e-12)
    heads = graph_of(call(0, "rms_norm", x, gain, place=PLACE, eps=EPS))
    assert variant("l2norm-vs-rmsnorm", name)(heads.calls[0], heads) is None


LAYER_CASES = {
    ("layernorm-unbiased-variance", ""): (VARIANCE * N / (N - 1) + EPS, MEAN, BIAS),
    ("norm-eps-outside-sqrt", ""): ((math.sqrt(VARIANCE) + EPS) ** 2, MEAN, BIAS),
    ("layernorm-bias-dropped", ""): (VARIANCE + EPS, MEAN, [0.0] * N),
    ("rmsnorm-for-layernorm", "with the bias"): (power(ROW) + EPS, 0.0, BIAS),
    ("rmsnorm-for-layernorm", "without the bias"): (power(ROW) + EPS, 0.0, [0.0] * N),
}


@pytest.mark.parametrize("case", LAYER_CASES, ids=" ".join)
def test_a_wrong_layer_norm_is_its_formula(case):
    """By loop."""
    under, mean, bias = LAYER_CASES[case]
    found = one_call(*case, "layer_norm", *map(np.array, ([[ROW]], GAIN, BIAS)), eps=EPS)
    expected = [
        (value - mean) / math.sqrt(under) * gain + shift
        for value, gain, shift in zip(ROW, GAIN, bias, strict=True)
    ]
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "case",
    [
        ("norm-eps-outside-sqrt", ""),
        ("norm-eps-inflated-by-rescale", ""),
        ("norm-parallel-merge-wrong", "of two halves"),
    ],
    ids=" ".join,
)
def test_each_row_of_a_large_array_has_its_own_root(case, monkeypatch):
    """By law: the right norm works on some rows of a large array at a time."""
    rows = normal(3, 2, 7, N).astype(np.float64)
    alone = [one_call(*case, "rms_norm", row[None], np.array(GAIN), eps=EPS) for row in rows[0]]
    monkeypatch.setattr(portions, "FEW", 3 * N)
    found = one_call(*case, "rms_norm", rows, np.array(GAIN), eps=EPS)
    assert found.shape == rows.shape
    np.testing.assert_allclose(found[0], np.concatenate(alone), rtol=1e-12)


@pytest.mark.parametrize("case", [
    *(one for one in RMS_CASES if one[0] != "qk-norm-missing"),
    ("norm-low-precision-accumulate", "added one by one in bfloat16"),
    ("norm-parallel-merge-wrong", "of 32 lanes"), ("norm-applied-twice", ""),
], ids=" ".join)  # fmt: skip
def test_a_norm_of_all_heads_is_wrong_as_that_of_one_long_head(case):
    """By law: a token's heads, side by side, are a row of the one norm that a port has."""
    heads, gain = normal(4, 1, 5, 2, N).astype(np.float64), np.array(GAIN)
    scope, root = variant("qk-norm-scope"), variant(*case)
    found = wrong(of_norm(heads, gain), lambda one, graph: scope(root(one, graph), graph))
    rows = heads.reshape(1, 5, 2 * N)
    expected = wrong(of_norm(rows, np.tile(gain, 2)), root)
    np.testing.assert_allclose(found.reshape(rows.shape), expected, rtol=1e-12)
    assert not np.allclose(found, wrong(of_norm(heads, gain), root), rtol=1e-3)
    order = [fault.id for fault in catalogue()]
    assert order.index("qk-norm-scope") > order.index(case[0])


def of_norm(x, gain):
    return graph_of(replace(call(0, "rms_norm", x, gain, place=PLACE, eps=EPS), arity=2))


@pytest.mark.parametrize(("name", "axes"), [
    ("of all numbers", (1, 2)), ("of one number in all tokens", (1,)),
])  # fmt: skip
def test_one_root_for_all_tokens_of_a_pass(name, axes):
    """By law: the numbers that share a root have a mean square of 1, in the prompt and a step."""
    rows = normal(4, 1, 5, N).astype(np.float64)
    graph = graph_of(call(0, "rms_norm", rows, np.ones(N), eps=0.0), steps=(3,))
    found = wrong(graph, variant("norm-wrong-axis", name))
    for some in (np.s_[:3], np.s_[3:]):
        power = np.square(found[:, some]).mean(axis=axes)
        np.testing.assert_allclose(power, np.ones_like(power), rtol=1e-12)
        ratio = found[:, some] / rows[:, some]
        spread = np.ptp(ratio, axis=axes)
        np.testing.assert_allclose(spread, np.zeros_like(spread), atol=1e-12)


def test_a_root_of_all_tokens_is_not_put_beside_one_of_each_row():
    graph = graph_of(call(0, "rms_norm", normal(4, 1, 5, N), np.ones(N), eps=EPS))
    (one,) = graph.calls
    shared, own = variant("norm-wrong-axis", "of all numbers"), variant("norm-eps-outside-sqrt")
    for first, second in ((shared, own), (own, shared)):
        with pytest.raises(Conflict):
            second(first(one, graph), graph)


def test_one_root_for_all_heads():
    """By hand: heads of mean square 1 and 4 have 2.5 together."""
    heads = np.array([[[[1.0, -1.0], [2.0, 2.0]]]])
    found = one_call(
        "qk-norm-scope", "", "rms_norm", heads, np.ones(2), place="self_attn.k_norm", eps=0.0
    )
    np.testing.assert_allclose(found, heads / math.sqrt(2.5), rtol=1e-12)


def test_a_sum_in_bfloat16_stops_where_one_more_rounds_away():
    """By hand: 256 + 1 is 256 in bfloat16, so 4096 ones have a mean square of 1/16."""
    ones = np.ones((1, 1, 4096))
    found = one_call(
        "norm-low-precision-accumulate", "added one by one in bfloat16",
        "rms_norm", ones, ones[0, 0], eps=0.0,
    )  # fmt: skip
    np.testing.assert_allclose(found, 4.0, rtol=1e-12)


def test_every_step_in_bfloat16_is_rounded():
    """By loop, with the roundings of ml_dtypes."""
    held = ml_dtypes.bfloat16
    squares = [float(held(float(held(value)) ** 2)) for value in ROW]
    total = float(held(float(held(sum(squares) / N)) + float(held(EPS))))
    root = float(held(1 / math.sqrt(total)))
    found = one_call(
        "norm-low-precision-accumulate", "each step in bfloat16",
        "rms_norm", np.array([[ROW]]), np.array(GAIN), eps=EPS,
    )  # fmt: skip
    expected = [value * root * gain for value, gain in zip(ROW, GAIN, strict=True)]
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-12)


def test_the_mean_square_alone_is_rounded():
    """By loop, with the roundings of ml_dtypes: rows, squares and mean, but not the root."""
    held = ml_dtypes.bfloat16
    squares = [float(held(float(held(value)) ** 2)) for value in ROW]
    root = 1 / math.sqrt(float(held(sum(squares) / N)) + EPS)
    found = one_call(
        "norm-low-precision-accumulate", "the mean square in bfloat16",
        "rms_norm", np.array([[ROW]]), np.array(GAIN), eps=EPS,
    )  # fmt: skip
    expected = [value * root * gain for value, gain in zip(ROW, GAIN, strict=True)]
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-12)


def test_counts_divided_as_integers_show_where_float32_overflows_alone():
    """By hand: the share is 0, and 0 times the square of 1e20 is no number."""
    case = ("norm-parallel-merge-wrong", "of 32 lanes, counts divided as integers")
    row = np.arange(1.0, 65.0)[None, None]
    right = row / np.sqrt(np.mean(row**2))
    found = one_call(*case, "rms_norm", row, np.ones(64), eps=0.0)
    np.testing.assert_allclose(found, right, rtol=1e-12)
    assert np.isnan(one_call(*case, "rms_norm", row * 1e10, np.ones(64), eps=0.0)).all()


def test_twice_is_the_gain_squared_where_the_norm_is_one():
    """By hand: signs have mean square 1; with the gains 1 and 2 it is 2.5 the second time."""
    row, gain = np.array([[[1.0, -1.0]]]), np.array([1.0, 2.0])
    found = one_call("norm-applied-twice", "", "rms_norm", row, gain, eps=0.0)
    np.testing.assert_allclose(found, [[[1.0, -4.0]]] / np.sqrt(2.5), rtol=1e-12)


def test_a_norm_rounded_once_differs_from_one_rounded_twice_in_half_precision_alone():
    """By law."""
    rng = np.random.default_rng(3)
    x, gain = rng.normal(size=(1, 4, 64)), np.exp(rng.normal(size=64))

    def both(dtype):
        inputs = x.astype(dtype), gain.astype(dtype)
        once = one_call("norm-cast-before-weight", "rounded once", "rms_norm", *inputs, eps=1e-6)
        from lockstep.reference.ops import rms_norm

        return once, rms_norm(*inputs, eps=1e-6)

    once, twice = both(ml_dtypes.bfloat16)
    assert once.dtype == twice.dtype and (once != twice).any()
    np.testing.assert_array_equal(*both(np.float32))


def test_a_projection_reads_what_the_norm_before_it_takes():
    """By hand: W x, and the norm itself is as it should be."""
    x, weight = np.array([[ROW]]), normal(4, 3, N, dtype=np.float64)
    graph = graph_of(
        call(0, "scale", x, by=1.0),
        call(1, "rms_norm", Value(0), np.array(GAIN), place="input_layernorm", eps=EPS),
        call(2, "linear", Value(1), weight, None, place="self_attn.q_proj"),
    )
    bug = variant("norm-result-discarded", "but dumped")
    np.testing.assert_allclose(wrong(graph, bug), x @ weight.T, rtol=1e-12)
    assert bug(graph.calls[1], graph) is None
