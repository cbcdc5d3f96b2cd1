"""Every corner of a sampler, decided: on each backend's own arrays, under each engine's rules.

By hand, from the tables of docs/decoding.md. A row goes the way that a decoder's logits go: over
`host.choices`, which on MLX and cpu finds the largest where the logits are.
"""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from lockstep.fast.backends.cpu import CpuBackend
from lockstep.fast.backends.mlx import MlxBackend
from lockstep.fast.decoding import host as fast_host
from lockstep.fast.decoding import sampling as fast_sampling
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import host as reference_host
from lockstep.reference.decoding import sampling as reference_sampling
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.sampling_semantics import ENGINES

NAN, INF = float("nan"), float("inf")
BELOW_1 = float(np.nextafter(1.0, 0.0))
UNIFORMS = (0.0, 0.3, 0.5, 0.7, BELOW_1)
SEVENTHS = np.log([1.0, 2.0, 4.0])
HANDS = {
    "reference": (reference_host, reference_sampling, None, np.array),
    "cpu": (fast_host, fast_sampling, CpuBackend("float32"), np.array),
    "mlx": (fast_host, fast_sampling, MlxBackend("float32", None), mx.array),
}


@pytest.fixture(params=HANDS)
def choose(request):
    """Return what chooses from rows (R, V) of logits as a backend's decoder does."""
    host, sampling, backend, array = HANDS[request.param]
    model = SimpleNamespace(backend=backend)

    def chosen(rows, options, uniform=0.5):
        logits = array(np.asarray(rows, np.float32))
        samplers = [sampling.greedy if options.is_argmax
                    else sampling.Sampler(options, iter([uniform]), []) for _ in rows]  # fmt: skip
        return [one if isinstance(one, int) else str(one)
                for one in host.choices(model, logits, samplers)]  # fmt: skip

    return chosen


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


def support(choose, logits, **options) -> set:
    """Return what is chosen at uniforms of all parts of the range."""
    grid = np.linspace(0, 1, 41, endpoint=False)
    return {choose([logits], SamplingOptions(**options), float(u))[0] for u in (*grid, BELOW_1)}


def refused(**options) -> str:
    with pytest.raises(InputError) as caught:
        SamplingOptions(**options)
    return str(caught.value)


def test_a_temperature_of_0_takes_the_lowest_of_the_best(choose, engine):
    for uniform in UNIFORMS:
        cold = SamplingOptions(0.0, semantics=engine)
        assert choose([[1, 3, 3, 0]], cold, uniform) == [1]


def test_a_tiny_temperature_takes_the_best_and_overflows_nowhere(choose, engine):
    """To llama.cpp a sum that is u is enough: its u = 0 takes the first, however unlikely.

    In vLLM, which never goes below 0.01, the first has e^-200, and u = 0 falls to that.
    """
    found = support(choose, [1, 3, 2, -3e38], temperature=1e-6, semantics=engine)
    assert found == ({0, 1} if engine in ("llama.cpp", "vllm") else {1})
    cold = SamplingOptions(1e-6, semantics=engine)
    for uniform in UNIFORMS[1:]:
        assert choose([[1, 3, 2, -3e38]], cold, uniform) == [1]
    assert support(choose, [3, 3, 1], temperature=1e-6, semantics=engine) == {0, 1}


def test_vllm_takes_a_temperature_below_a_hundredth_for_it(choose, engine):
    """By hand: at 0.01 the second of two that are 0.01 apart has 1 / (1 + e), at 1e-6 nothing."""
    for heat in (1e-6, 0.0099):
        cold = SamplingOptions(heat, semantics=engine)
        found = [choose([[0.01, 0]], cold, uniform)[0] for uniform in (0.72, 0.74)]
        assert found == ([0, 1] if engine == "vllm" or heat > 0.009 else [0, 0])


@pytest.mark.parametrize("value", [-1.0, -1e-9, 1e-7, 101.0, NAN, INF, -INF])
def test_other_temperatures_are_refused(engine, value):
    assert f"temperature={value}, but should be 0, or from" in refused(
        temperature=value, semantics=engine
    )


TOP_P_0 = {  # of two equals at the top
    "llama.cpp": {0}, "transformers": {0}, "wedlm": {0}, "ember": {0, 1}, "mlx-lm": {0, 1, 2},
}  # fmt: skip


def test_a_top_p_of_0_is_what_the_engine_makes_of_it(choose, engine):
    if engine not in TOP_P_0:
        assert "top_p=0, but should be above 0" in refused(top_p=0, semantics=engine)
        return
    found = support(choose, [1, 1, 0], temperature=1.0, top_p=0, semantics=engine)
    assert found == TOP_P_0[engine]


def test_a_top_p_of_1_keeps_all_and_a_tiny_one_the_best(choose, engine):
    assert support(choose, SEVENTHS, temperature=1.0, top_p=1, semantics=engine) == {0, 1, 2}
    assert support(choose, SEVENTHS, temperature=1.0, top_p=1e-300, semantics=engine) == {2}


@pytest.mark.parametrize("value", [NAN, INF, -0.1, 1.01])
def test_other_shares_are_refused(engine, value):
    assert f"top_p={value}, but should be" in refused(top_p=value, semantics=engine)
    for name in ("min_p", "typical_p"):
        said = refused(**{name: value}, semantics=engine)
        assert f"{name}={value}, but should be" in said or "has none" in said


def test_a_sum_that_falls_short_of_top_p_keeps_all(choose, engine):
    """Ten equals whose shares of a tenth would be added up to less than 1."""
    found = support(choose, np.zeros(10), temperature=1.0, top_p=BELOW_1, semantics=engine)
    assert found == set(range(10))


def test_a_top_k_of_0_keeps_all_and_below_is_refused(choose, engine):
    assert support(choose, SEVENTHS, temperature=1.0, top_k=0, semantics=engine) == {0, 1, 2}
    assert "top_k=-1, but should be 0 or more" in refused(top_k=-1, semantics=engine)


@pytest.mark.parametrize("count", [3, 4, 10**9])
def test_a_top_k_of_the_vocabulary_and_beyond(choose, engine, count):
    """mlx-lm refuses the vocabulary itself, ember what is beyond; the others keep all."""
    found = support(choose, SEVENTHS, temperature=1.0, top_k=count, semantics=engine)
    most = {"mlx-lm": 2, "ember": 3}.get(engine, count)
    if count <= most:
        assert found == {0, 1, 2}
    else:
        assert found == {f"sampling: top_k={count}, but {engine} takes at most {most} here"}


def test_ties_at_the_border_of_top_k(choose, engine):
    found = support(choose, [0, 2, 2, 2], temperature=1.0, top_k=2, semantics=engine)
    every = engine in ("transformers", "vllm", "ember", "wedlm")
    assert found == ({1, 2, 3} if every else {1, 2})


def test_a_vocabulary_of_one(choose, engine):
    for heat in (0.0, 1.0):
        assert support(choose, [-3.0], temperature=heat, semantics=engine) == {0}
        assert support(choose, [-3.0], temperature=heat, top_p=0.5, semantics=engine) == {0}
    limited = support(choose, [-3.0], temperature=1.0, top_k=1, semantics=engine)
    refusal = {"sampling: top_k=1, but mlx-lm takes at most 0 here"}
    assert limited == (refusal if engine == "mlx-lm" else {0})


def test_a_min_p_of_0_keeps_all_and_of_1_the_best(choose, engine):
    if "min_p" in ENGINES[engine].lacks:
        assert "has none" in refused(min_p=0.5, semantics=engine)
        return
    assert support(choose, SEVENTHS, temperature=1.0, min_p=0, semantics=engine) == {0, 1, 2}
    assert support(choose, [1, 1, 0], temperature=1.0, min_p=1, semantics=engine) == {0, 1}


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_logit_that_is_no_number_ends_its_row_alone(choose, engine, bad, heat):
    rows = [[0, 5, 1], [0, bad, 1], [7, 0, 0]]
    found = choose(rows, SamplingOptions(heat, top_k=1, semantics=engine))
    assert found == [1, f"logits: logit 1 is {bad}, but should be finite", 0]


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_minus_infinity_is_never_chosen_and_nothing_else_is_an_error(choose, engine, heat):
    found = support(choose, [-INF, 0, -INF, 0, -INF], temperature=heat, semantics=engine)
    assert found == ({1} if heat == 0 else {1, 3})
    (said,) = choose([[-INF] * 3], SamplingOptions(heat, semantics=engine))
    assert said.startswith("logits: ") and "inf" in said


def test_that_all_are_banned_is_an_error(choose, engine):
    if "logit_bias" in ENGINES[engine].lacks:
        assert "has none" in refused(logit_bias=((0, -INF),), semantics=engine)
        return
    ban = SamplingOptions(1.0, logit_bias=((0, -INF), (1, -INF)), semantics=engine)
    assert choose([[1, 2]], ban)[0].startswith("logits: ")


def test_the_ends_of_the_uniforms(choose, engine):
    """0 takes the first that is left, and just below 1 the last, in the order of the draw."""
    warm = SamplingOptions(1.0, top_k=2, semantics=engine)
    ends = [choose([[1, -9, 2, 3]], warm, uniform)[0] for uniform in (0.0, BELOW_1)]
    assert ends == ([3, 2] if engine == "llama.cpp" else [2, 3])  # best first, or by ids


def test_huge_logits_overflow_nowhere(choose, engine):
    found = support(choose, [3e38, -3e38, 3e38], temperature=1.0, semantics=engine)
    assert found == {0, 2}
    assert support(choose, [0, -1e4, 0], temperature=1.0, semantics=engine) == {0, 2}
