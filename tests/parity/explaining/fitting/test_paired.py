"""What a number is held against, where a bug stands beside it: not right arithmetic, but the bug.

By hand: a gain of what the bug gives, and a bound that cuts one number off.
"""

import numpy as np
import pytest

from lockstep.parity.explaining.fitting.paired import Paired
from lockstep.parity.explaining.searching.hypothesis import Atom, hypotheses
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.numbers import NUMBERS
from tests.parity.explaining.ports import graph_of, model_of, port, rewrite_of

NAME, LAST, GATE = "models/untied_float32", "model.norm", "model.layers.1.mlp.act_fn"
PLENTY = 10_000
TWICE, GELU = "norm-plus-one-twice", "act-silu-vs-gelu[gelu (tanh) for silu]"


def paired(bug: str, number: str, tap: str, value: np.ndarray, taps: dict) -> Paired:
    """Return the fit of a number of one tap, beside a bug of it, where the port has a value."""
    model, graph = model_of(NAME), graph_of(NAME)
    target = graph.taps[tap]
    values = {graph.taps[one]: taps[one] for one in taps} | {target: value.astype(np.float32)}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    every = hypotheses(catalogue(), graph)
    (one,) = (each for each in every if each.rewrite is rewrite_of(bug))
    return Paired(
        trial, graph.piece(target, values), NUMBERS[number][0], frozenset([target]), PLENTY,
        bug=Atom(one, frozenset([target])), behind=True,
    )  # fmt: skip


@pytest.mark.parametrize(("factor", "gain"), [(1.0, True), (0.7, True), (None, False)])
def test_a_gain_is_one_of_what_the_bug_gives(factor, gain):
    taps, model = port(NAME, level="layers"), model_of(NAME)
    x = taps["model.layers.1"].astype(np.float64)
    weight = 1 + model.checkpoint.tensor("model.norm.weight").astype(np.float64)
    uneven = np.linspace(0.6, 0.8, x.shape[-1]) if factor is None else factor
    normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-3) * weight * uneven
    assert paired(TWICE, "rms-eps-wrong", LAST, normed, taps).is_a_gain() is gain


@pytest.mark.parametrize("count", [1, 2])
def test_a_bound_must_cut_off_two_numbers_of_what_the_bug_gives(count):
    """The bug moves all of them: that is not the bound's."""
    taps = port(NAME, [GELU], level="taps")
    largest = np.sort(taps[GATE], axis=None)[::-1]
    most = 0.5 * float(largest[count - 1] + largest[count])
    fit = paired(GELU, "activation-clamped", GATE, np.minimum(taps[GATE], most), taps)
    assert fit.is_shared(most) is (count > 1)
