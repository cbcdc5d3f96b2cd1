"""WeDLM's decoder on real forward passes: one text on every backend, and caches that are prefills.

The truth is a loop that recomputes everything in each step, `tests/diffusion_by_loop.py`.
"""

import inspect
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.fast.decoding import diffusion as fast_diffusion
from lockstep.fast.decoding import sampling as fast_sampling
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.decoding import diffusion as reference_diffusion
from lockstep.reference.decoding import sampling as reference_sampling
from lockstep.reference.scheduling.diffusion_options import VARIANTS, DiffusionOptions
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests.diffusion_by_loop import BUILDS, Settings, checkpoint, scored_by, simulated
from tests.fast.decoding.test_autoregressive import Evaluations
from tests.sampled import sampled

MASK, PROMPT, MOST = 39, [3, 1, 4, 1, 5], 18
SAMPLED = SamplingOptions(0.7, top_k=12, top_p=0.9, semantics="wedlm")
ENGINES = ("reference", "mlx", "cpu")
PLACES = {"8B": 1, "7B": 1}  # seeds whose texts do not repeat one token


@pytest.fixture(scope="module", params=BUILDS)
def folder(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("wedlm") / request.param
    return checkpoint(path, request.param, seed=PLACES[request.param], sharp=2.5)


def loaded(folder, engine):
    return reference.load(folder) if engine == "reference" else fast.load(folder, backend=engine)


def options(way: str, **changes) -> DiffusionOptions:
    own = VARIANTS[way]
    chosen = {"window": 6, "threshold": 0.4, "position_penalty": 0.02, "penalty": own.penalty}
    return DiffusionOptions(MASK, own, **chosen | changes)


def written(model, chosen, sampled=None, *, told=None, cache=None, most=MOST):
    is_fast = hasattr(model, "backend")
    sampling = fast_sampling if is_fast else reference_sampling
    diffusion = fast_diffusion if is_fast else reference_diffusion
    choose = sampling.greedy
    if sampled is not None:
        choose = sampling.Sampler(sampled, seeded(4), [])
    made = diffusion.generate(
        model, PROMPT, options=chosen, room=64, max_tokens=most, stop=(), choose=choose,
        cache=cache, told=told,
    )  # fmt: skip
    return list(made)


def expected(folder, chosen, sampled=None):
    port = chosen.variant.name == "mlx-port"
    rules = Settings(
        MASK, chosen.window, chosen.threshold, chosen.position_penalty,
        chosen.penalty == "window", chosen.heat, chosen.variant.floor, port,
    )  # fmt: skip
    choose = {}
    if sampled is not None:
        choose = {"choose": reference_sampling.Sampler(sampled, seeded(4), [])}
    return simulated(scored_by(folder), PROMPT, rules, most=MOST, **choose)


@sampled(1, "8B-window-mlx-port-greedy")
@pytest.mark.parametrize("sampled", [None, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.parametrize("penalty", ["first-mask", "window", "tempered"])
def test_every_backend_writes_what_the_loop_writes(folder, way, penalty, sampled):
    chosen = options(way, penalty=penalty, temperature=0.7 if penalty == "tempered" else 1.0)
    text, runs = expected(folder, chosen, sampled)
    assert len(set(text)) > 2 and len(runs) < 3 * MOST
    for engine in ENGINES:
        steps = []
        assert written(loaded(folder, engine), chosen, sampled, told=steps.append) == text
        assert [list(step.positions) for step in steps] == runs


@sampled(1)
def test_the_settings_matter(folder):
    """Else the test above would hold without them."""
    model = reference.load(folder)
    ways = [options(way, threshold=threshold, window=window) for way in VARIANTS
            for threshold in (0.1, 0.4, 1.0, None) for window in (3, 6)]  # fmt: skip
    counts = []
    for chosen in ways:
        steps = []
        written(model, chosen, told=steps.append)
        counts.append(sum(len(step.tokens) + step.extra for step in steps))
    assert len(set(counts)) >= 6, counts


def held(model, cache, token) -> list[np.ndarray]:
    """Return all keys and values that a cache gives to a pass of one token more."""
    found, update = [], cache.update

    def listening(*arguments):
        found.extend(update(*arguments))
        return found[-2:]

    cache.update = listening
    model.forward([[token]], cache=cache)
    return [np.array(array) for array in found]


@sampled(7, "7B-growing-tencent-cpu")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.parametrize("kind", ["concatenating", "growing", "preallocated"])
def test_what_is_committed_is_what_a_prefill_keeps(folder, way, engine, kind):
    """By law: after every step the cache is that of the text so far, read at once."""
    model = loaded(folder, engine)
    cache = model.make_cache(kind, room=40 if kind == "preallocated" else None)
    looked, text = [], list(PROMPT)

    def look(step):
        text.extend(step.committed)
        if not step.committed:
            return
        looked.append(len(text))
        assert cache.positions.array.tolist() == [[*range(len(text))]]
        plain = model.make_cache()
        model.forward([text], cache=plain)
        here = held(model, cache.branch(), 7)
        for mine, theirs in zip(here, held(model, plain, 7), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-5 * theirs.std(), rtol=0)

    made = written(model, options(way), told=look, cache=cache)
    assert looked[-1] == len(PROMPT) + len(made) and len(looked) >= 3


@sampled(1, "7B-cpu")
@pytest.mark.parametrize("engine", ENGINES)
def test_quantised_caches_can_be_taken_back(folder, engine):
    model = loaded(folder, engine)
    cache = model.make_cache("int8")
    made = written(model, options("tencent"), cache=cache)
    assert cache.positions.length == len(PROMPT) + len(made)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mask_sees_what_stands_before_it_in_the_row_and_nothing_else(folder, engine):
    """By law: what comes first does not feel the order of what follows; positions stay their own.

    Tokens 5 and 6 are known at positions 9 and 7; three masks stand at 6, 8 and 10.
    """
    model = loaded(folder, engine)

    def run(places):
        tokens = [5, 6, *[MASK] * len(places)]
        positions = np.array([[9, 7, *places]])
        cache = model.make_cache()
        model.forward([PROMPT], cache=cache)
        found = model.forward([tokens], cache=cache, positions=positions, reordered=True)
        return dict(zip([9, 7, *places], np.array(found)[0], strict=True))

    first, other = run([6, 8, 10]), run([6, 10, 8])
    alone, moved = run([10]), run([8, 6, 10])
    off = 1e-4 * first[6].std()
    for place in (9, 7, 6):
        np.testing.assert_allclose(first[place], other[place], atol=off, rtol=0)
    assert np.abs(first[8] - other[8]).max() > 100 * off  # one mask fewer before it
    assert np.abs(first[10] - alone[10]).max() > 100 * off
    assert np.abs(moved[6] - first[6]).max() > 100 * off  # which one stands before, matters
    by_position = np.array(
        model.forward([[*PROMPT, 6, 5]], positions=np.array([[0, 1, 2, 3, 4, 7, 9]]))
    )[0]
    assert np.abs(first[7] - by_position[5]).max() > 100 * off  # 6 saw 5, to its right


def test_padding_is_seen_by_nobody(folder):
    """By law: a shorter row among reordered ones is what it is alone."""
    for engine in ENGINES:
        model = loaded(folder, engine)
        rows, places = [[5, 6, 7, 8], [9, 3, 0, 0]], [[2, 0, 3, 1], [1, 0, 2, 3]]
        both = model.forward(
            rows, positions=np.array(places), lengths=np.array([4, 2]), reordered=True
        )
        alone = model.forward([rows[1][:2]], positions=np.array([[1, 0]]), reordered=True)
        both, alone = np.array(both), np.array(alone)
        np.testing.assert_allclose(both[1, :2], alone[0], atol=1e-4 * alone.std(), rtol=0)


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.parametrize("sampled", [None, SAMPLED], ids=["greedy", "sampled"])
def test_mlx_evaluates_once_a_step(folder, monkeypatch, way, sampled):
    """And once for the prompt: an extra pass is computed with the step after it."""
    model, counts = fast.load(folder, backend="mlx"), []
    evaluations = Evaluations(monkeypatch)
    written(model, options(way), sampled, told=lambda step: counts.append(evaluations.count))
    if way == "tencent":  # the last step commits, and has no masks to look at
        counts.pop()
    assert counts == [*range(2, 2 + len(counts))] and len(counts) > 5


def test_logits_stay_on_the_device(folder, monkeypatch):
    """Greedily, what comes over is one entropy and one id for each mask."""
    model, sizes = fast.load(folder, backend="mlx"), []
    host = model.backend.host
    monkeypatch.setattr(model.backend, "host", lambda x: sizes.append(x.size) or host(x))
    steps = []
    written(model, options("tencent"), told=steps.append)
    assert sizes and max(sizes) <= 12


def test_both_packages_have_one_interface():
    for name in ("generate", "selected"):
        one, other = (
            inspect.signature(getattr(package, name)).parameters.values()
            for package in (reference_diffusion, fast_diffusion)
        )
        assert [(p.name, p.kind, p.default) for p in one] == [
            (p.name, p.kind, p.default) for p in other
        ]


@pytest.mark.parametrize("backend", ["mlx", "cpu"])
def test_the_mask_of_a_window_is_a_plain_triangle(folder, monkeypatch, backend):
    """So the fused kernel needs no mask that is written out."""
    model, kinds = fast.load(folder, backend=backend), set()
    attention = model.ops.attention

    def listening(queries, keys, values, mask, **options):
        kinds.add(mask.kind)
        return attention(queries, keys, values, mask, **options)

    monkeypatch.setattr(model.ops, "attention", listening)
    written(model, options("tencent"))
    assert kinds == {"causal"}
