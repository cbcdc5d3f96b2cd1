"""WeDLM's decoder on a scripted model: its published traces, and a loop without window or cache."""

import math
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from lockstep.fast.backends.cpu import CpuBackend
from lockstep.fast.backends.mlx import MlxBackend
from lockstep.fast.decoding import diffusion as fast
from lockstep.fast.decoding.sampling import greedy as fast_greedy
from lockstep.parity.decoders.counting import Counts
from lockstep.parity.demo.wedlm import FIRST, MASK, Scripted, unsure
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import diffusion as reference
from lockstep.reference.decoding.sampling import greedy
from lockstep.reference.scheduling.diffusion_options import DiffusionOptions, variant_named
from lockstep.reference.scheduling.diffusion_window import Step
from tests.diffusion_by_loop import Settings, simulated
from tests.sampled import sampled

PROMPT = [1, 2, 3]
M = MASK


class OnCpu(Scripted):
    backend = CpuBackend("float32")


class OnMlx(Scripted):
    backend = MlxBackend("float32", None)

    def logits(self, positions):
        return mx.array(super().logits(positions).astype(np.float32))


SIDES = [
    SimpleNamespace(model=Scripted, decoding=reference, greedy=greedy),
    SimpleNamespace(model=OnCpu, decoding=fast, greedy=fast_greedy),
    SimpleNamespace(model=OnMlx, decoding=fast, greedy=fast_greedy),
]


@pytest.fixture(params=SIDES, ids=["reference", "cpu", "mlx"])
def side(request):
    return request.param


def options(way="tencent", **changes) -> DiffusionOptions:
    variant = variant_named(way)
    chosen = {"window": 4, "threshold": 0.4, "position_penalty": 0.02, "penalty": variant.penalty}
    return DiffusionOptions(MASK, variant, **chosen | changes)


def made(side, chosen, *, prompt=PROMPT, most=8, stop=(), room=10**6, entropies=None, choose=None):
    """Return the tokens and the steps of one text, and the cache that it leaves."""
    model = side.model() if entropies is None else side.model(entropies)
    held, steps = model.make_cache(), []
    tokens = side.decoding.generate(
        model, prompt, options=chosen, room=room, max_tokens=most, stop=stop,
        choose=choose or side.greedy, cache=held, told=steps.append,
    )  # fmt: skip
    return list(tokens), steps, held


def said(step: Step) -> tuple:
    return (*map(list, (step.tokens, step.positions, step.committed, step.filled, step.after)),)


# Made by following the rules of the engine: W = 4, three tokens of prompt, tau 0.4, lambda 0.02.
# Input in physical order, positions, committed, filled in, window after.
TRACE = [
    ([M, M, M, M], [3, 4, 5, 6], [], [3, 5], [103, None, 105, None]),
    ([103, 105, M, M, M], [3, 5, 4, 6, 7], [103], [7], [None, 105, None, 107]),
    ([105, 107, M, M], [5, 7, 4, 6], [], [6], [None, 105, 106, 107]),
    ([105, 106, 107, M], [5, 6, 7, 4], [], [4], [104, 105, 106, 107]),
    ([104, 105, 106, 107, M, M, M, M], [4, 5, 6, 7, 8, 9, 10, 11], [104, 105, 106, 107], [10],
     [None, None, 110, None]),
    ([110, M, M, M], [10, 8, 9, 11], [], [9], [None, 109, 110, None]),
    ([109, 110, M, M], [9, 10, 8, 11], [], [8], [108, 109, 110, None]),
    ([108, 109, 110, M, M, M, M], [8, 9, 10, 11, 12, 13, 14], [108, 109, 110], [], []),
]  # fmt: skip


def test_the_trace_of_the_engine(side):
    tokens, steps, held = made(side, options())
    assert tokens == [103, 104, 105, 106, 107, 108, 109, 110]
    assert [said(step) for step in steps] == TRACE
    assert held.positions.array.tolist() == [[*range(11)]]  # what is final, and nothing else


def test_one_mask_a_step_without_a_threshold(side):
    tokens, steps, _ = made(side, options(threshold=None))
    assert [place for step in steps for place in step.filled] == [5, 3, 7, 6, 4, 10, 9, 8]
    assert (len(tokens), len(steps)) == (8, 9)


def test_the_counts_of_the_trace():
    """By hand: 4 + 5 + 4 + 4 + 8 + 4 + 4 + 7 tokens in 8 passes, for 8 tokens."""
    counts = Counts()
    tokens, steps, _ = made(SIDES[0], options())
    for step in steps:
        counts(step)
    assert counts.document(len(tokens)) == {
        "steps": 8, "forwards": 8, "fed": 40, "tokens_per_forward": 1.0, "p_cache": 0.2
    }  # fmt: skip
    nothing = Counts().document(0)
    assert (nothing["tokens_per_forward"], nothing["p_cache"]) == (None, None)


def test_the_port_commits_in_the_same_step(side):
    """By hand: what is filled in at the front leaves at once, in a pass of its own."""
    tokens, steps, _ = made(side, options("mlx-port", threshold=0.3, position_penalty=0.01))
    assert tokens == [103, 104, 105, 106, 107, 108, 109, 110]
    assert said(steps[0]) == ([M] * 4, [3, 4, 5, 6], [], [5], [None, None, 105, None])
    assert said(steps[1]) == (
        [105, M, M, M], [5, 3, 4, 6], [103], [3], [None, 105, None, None]
    )  # fmt: skip
    assert steps[1].extra == 1
    assert said(steps[2])[:2] == ([105, M, M, M], [5, 4, 6, 7])
    counts = Counts()
    for step in steps:
        counts(step)
    assert (counts.steps, counts.forwards, counts.fed) == (8, 11, 32 + 8)


def test_a_window_of_one_goes_token_by_token(side):
    """By hand: N tokens take N + 1 passes; the first runs a mask, the last only commits."""
    tokens, steps, _ = made(side, options(window=1), most=5)
    assert tokens == [103, 104, 105, 106, 107]
    assert [step.tokens for step in steps] == [[M]] + [[token, M] for token in tokens]
    assert [list(step.filled) for step in steps] == [[3], [4], [5], [6], [7], []]
    port = made(side, options("mlx-port", window=1), most=5)
    assert port[0] == tokens and [step.tokens for step in port[1]] == [[M]] * 5


def test_an_end_in_the_middle_waits_until_it_is_final(side):
    """By hand: 105 is known after the first step, 107 after the second; the text ends with 105."""
    tokens, steps, held = made(side, options(), stop={105})
    assert tokens == [103, 104, 105]
    assert [said(step) for step in steps[:4]] == TRACE[:4]
    assert said(steps[4]) == (*TRACE[4][:2], [104, 105], [], [])
    assert (len(steps), held.positions.length) == (5, 6)


def test_the_port_knows_no_end(side):
    assert made(side, options("mlx-port"), stop={105})[0] == [*range(103, 111)]


@pytest.mark.parametrize("most", range(1, 8))
@pytest.mark.parametrize("way", ["tencent", "mlx-port"])
def test_no_more_tokens_than_asked_for(side, way, most):
    """By hand: four are committed at once, whether or not all are wanted."""
    tokens, _, held = made(side, options(way), most=most)
    assert tokens == [*range(103, 103 + most)]
    assert held.positions.length == len(PROMPT) + most


@pytest.mark.parametrize("most", [0, -1])
def test_nothing_asked_for_is_nothing_computed(side, most):
    tokens, steps, held = made(side, options(), most=most)
    assert (tokens, steps, held.positions.length) == ([], [], 0)


@pytest.mark.parametrize("way", ["tencent", "mlx-port"])
def test_what_is_final_is_handed_out_before_an_error(side, way):
    """By hand: the sixth call of the sampler is refused; what is final by then has been said."""
    calls, model = iter(range(99)), side.model()
    held, steps, tokens = model.make_cache(), [], []

    def choose(logits):
        if next(calls) == 5:
            raise InputError("logits", "NaN")
        return side.greedy(logits)

    coming = side.decoding.generate(
        model, PROMPT, options=options(way), room=99, max_tokens=8, stop=(), choose=choose,
        cache=held, told=steps.append,
    )  # fmt: skip
    with pytest.raises(InputError, match="logits: NaN"):
        for token in coming:
            tokens.append(token)
    known = steps[-1].after[: list(steps[-1].after).index(None)]
    assert tokens == [103, 104, 105, 106, 107][: len(tokens)] and len(tokens) >= 3 and not known
    assert held.positions.length == len(PROMPT) + len(tokens) and not steps[-1].filled


@pytest.mark.parametrize("chunk", [0, -3])
def test_chunks_of_nothing_are_refused(side, chunk):
    with pytest.raises(InputError, match=f"chunk: {chunk}, but should be 1 or more"):
        next(side.decoding.generate(
            side.model(), PROMPT, options=options(), room=99, max_tokens=4, stop=(),
            choose=side.greedy, chunk=chunk,
        ))  # fmt: skip


@pytest.mark.parametrize("way", ["tencent", "mlx-port"])
def test_the_window_ends_where_the_positions_end(side, way):
    """By hand: with room for 9, six come after the prompt of three; a ninth position is none."""
    for room in (3, 4, 5, 9):
        tokens, steps, _ = made(side, options(way), most=50, room=room)
        assert tokens == [*range(103, 100 + room)]
        assert all(max(step.positions) < room for step in steps)


def test_an_empty_prompt_is_refused_and_a_cache_is_gone_on_with(side):
    with pytest.raises(InputError, match="the prompt has no tokens"):
        made(side, options(), prompt=[])
    model = side.model()
    held = model.make_cache()
    for prompt in (PROMPT, []):
        tokens = side.decoding.generate(
            model, prompt, options=options(), room=99, max_tokens=4, stop=(), choose=side.greedy,
            cache=held,
        )  # fmt: skip
        assert len(list(tokens)) == 4
    assert held.positions.length == 3 + 4 + 4


@pytest.mark.parametrize("way", ["tencent", "mlx-port"])
def test_who_stops_listening_leaves_a_cache_of_what_was_heard(side, way):
    """By hand: of the four tokens that are committed at once, two are taken."""
    model = side.model()
    held = model.make_cache()
    tokens = side.decoding.generate(
        model, PROMPT, options=options(way), room=99, max_tokens=20, stop=(), choose=side.greedy,
        cache=held,
    )  # fmt: skip
    assert [next(tokens) for _ in range(3)] == [103, 104, 105]
    assert held.positions.length == 3 + 5
    tokens.close()
    assert held.positions.length == 3 + 3


def test_the_first_mask_draws_first(side):
    """By hand: of the masks of one step, each asks once, in the order of the text."""
    asked = []

    def choose(logits):
        asked.append(int(logits.argmax()))
        return asked[-1] + 20

    tokens, _, _ = made(side, options(), most=3, choose=choose)
    assert asked[:3] == [103, 105, 107] and tokens == [123, 124, 125]


def test_the_prompt_is_read_in_chunks_if_asked(side):
    for chosen, chunk, parts in (
        (options(), None, [7]), (options(), 3, [3, 3, 1]), (options("mlx-port"), None, [7]),
    ):  # fmt: skip
        model, stages = side.model(), []
        inner = model.stages
        model.stages = lambda tokens, cache, inner=inner, stages=stages: (
            stages.append(len(tokens[0])) or inner(tokens, cache=cache)
        )
        told, read = [], []
        made = side.decoding.generate(
            model, [1] * 7, options=chosen, room=99, max_tokens=1, stop=(), choose=side.greedy,
            chunk=chunk, watch=told.append,
            read=lambda read=read, stages=stages: read.append(len(stages)),
        )  # fmt: skip
        next(made)
        assert stages[: len(parts)] == parts and read == [len(parts)]
        # The head is never asked for; the first token is final in the second step, or at once.
        steps = ["step"] * (1 if chosen.variant.extends else 2)
        assert told == ["embed_tokens", "layer"] * len(parts) + steps


@pytest.mark.parametrize(("steady", "parts"), [(8, [4, 3]), (7, [4, 3]), (6, [7])])
def test_a_prompt_that_must_not_be_read_in_parts_is_read_whole(side, steady, parts):
    """By hand: a rope that goes by the length of the text, beyond so many tokens of it."""
    model, fed = side.model(), []
    scaling = SimpleNamespace(rope_type="dynamic", original_max_position_embeddings=steady)
    model.config = SimpleNamespace(**vars(model.config), rope_scaling=scaling)
    inner = model.stages
    model.stages = lambda tokens, cache: fed.append(len(tokens[0])) or inner(tokens, cache=cache)
    made = side.decoding.generate(
        model, [1] * 7, options=options(), room=99, max_tokens=1, stop=(), choose=side.greedy,
        chunk=4,
    )  # fmt: skip
    next(made)
    assert fed[: len(parts)] == parts


@pytest.mark.parametrize("decoding", [reference, fast], ids=["reference", "fast"])
@pytest.mark.parametrize(
    ("penalty", "slope", "threshold", "gone", "rows"),
    # Masks in the slots 2, 4 and 5, of 0.35, 0.31 and 0.2 nats.
    [("first-mask", 0.1, 0.4, 0, [0]),  # 0.35, 0.51, 0.5
     ("tempered", 0.1, 0.4, 0, [0]),
     ("window", 0.1, 0.4, 0, [0]),  # 0.55, 0.71, 0.7: none is below, and the first is the least
     ("window", 0.02, 0.4, 0, [0, 1, 2]),  # 0.39, 0.39, 0.3
     ("window", 0.02, 0.4, 1, [2]),  # 0.41, 0.41, 0.32
     ("first-mask", 0.02, 0.36, 0, [0, 1, 2]),  # 0.35, 0.35, 0.26
     ("first-mask", 0.02, 0.36, 3, [0, 1, 2]),
     ("window", 0.02, 0.36, 0, [2]),
     ("first-mask", 0.01, None, 0, [2]),
     ("first-mask", 0.3, None, 0, [0]),
     ("first-mask", 0.0, 0.35, 0, [1, 2]),  # not what equals it
     ("first-mask", 0.0, 0.0, 0, [2])],
)  # fmt: skip
def test_which_masks_are_filled_in(decoding, penalty, slope, threshold, gone, rows):
    """By hand."""
    chosen = options(penalty=penalty, position_penalty=slope, threshold=threshold)
    found = decoding.selected(np.array([0.35, 0.31, 0.2]), [2, 4, 5], chosen, gone=gone)
    assert found == rows


@pytest.mark.parametrize("decoding", [reference, fast], ids=["reference", "fast"])
def test_the_first_of_equals(decoding):
    chosen = options(threshold=None, position_penalty=0.0)
    assert decoding.selected(np.array([0.5, 0.25, 0.25]), [0, 1, 2], chosen, gone=0) == [1]


def entropies(backend, rows, heat, floor):
    if backend is None:
        return reference.entropy(rows, heat=heat, floor=floor)
    there = rows if backend.name == "cpu" else mx.array(rows)
    return backend.host(backend.entropy(there, heat=heat, floor=floor))


@pytest.mark.parametrize("backend", [None, OnCpu.backend, OnMlx.backend],
                         ids=["reference", "cpu", "mlx"])  # fmt: skip
def test_entropies_by_hand(backend):
    """Of V equals it is ln V; of a half and two quarters 1.5 ln 2; of one token 0."""
    rows = np.array([np.zeros(4), np.log([2, 1, 1, 1e-300]), [0, -np.inf, -np.inf, -np.inf],
                     [9e4, 9e4, -9e4, -9e4]])  # fmt: skip
    rows = rows.astype(np.float32)
    found = entropies(backend, rows, 1.0, 0.0)
    np.testing.assert_allclose(found, [math.log(4), 1.5 * math.log(2), 0, math.log(2)], atol=1e-6)
    # At T = 0.5 the weights 2, 1, 1 are 4, 1, 1.
    hot = -(4 / 6 * math.log(4 / 6) + 2 / 6 * math.log(1 / 6))
    assert entropies(backend, rows, 0.5, 0.0)[1] == pytest.approx(hot, abs=1e-6)
    # With 0.5 added inside the logarithm: -ln(1 / 4 + 1 / 2).
    assert entropies(backend, rows, 1.0, 0.5)[0] == pytest.approx(-math.log(0.75), abs=1e-6)
    wide = np.zeros((1, 50_000), np.float32)
    assert entropies(backend, wide, 1.0, 0.0)[0] == pytest.approx(math.log(50_000), abs=1e-4)
    assert entropies(backend, wide, 1.0, 1e-10)[0] == pytest.approx(math.log(50_000), abs=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_stop_it(side, bad):
    model = side.model()
    inner = model.logits

    def spoilt(positions):
        found = inner(positions)
        spot = np.zeros(found.shape, bool)
        spot[0, 1] = True if bad == -np.inf else np.arange(found.shape[-1]) == 7
        where = mx.where if side.model is OnMlx else np.where
        return where(mx.array(spot) if side.model is OnMlx else spot, bad, found)

    model.logits = spoilt
    with pytest.raises(InputError, match="but should be finite"):
        list(
            side.decoding.generate(
                model, PROMPT, options=options(), room=99, max_tokens=4, stop=(),
                choose=side.greedy,
            )
        )  # fmt: skip


def scored_by(script):
    def score(tokens, positions):
        return np.array([unsure(FIRST + at, script[at % len(script)]) for at in positions])

    return score


@sampled(1, "tencent-window")
@pytest.mark.parametrize("penalty", ["first-mask", "window", "tempered"])
@pytest.mark.parametrize("way", ["tencent", "mlx-port"])
def test_the_loop_of_the_description(way, penalty):
    """By loop: the same tokens and the same runs, whatever the settings, on every side."""
    rng, differ = np.random.default_rng(0), 0
    hot, port = 0.7 if penalty == "tempered" else 1.0, way == "mlx-port"
    for _ in range(25):
        script = [0.05 * int(step) for step in rng.integers(1, 12, rng.integers(5, 9))]
        window, most, room = (
            int(rng.choice(some)) for some in ([1, 4, 7], [2, 9, 12], [8, 17, 99])
        )
        threshold = [None, 0.2137, 0.4137][rng.integers(3)]
        slope, stop = float(rng.choice([0.013, 0.107])), [set(), {104}, {110}][rng.integers(3)]
        chosen = options(way, window=window, threshold=threshold, position_penalty=slope,
                         penalty=penalty, temperature=hot)  # fmt: skip
        rules = Settings(MASK, window, threshold, slope, penalty == "window", hot,
                         1e-10 if port else 0.0, port)  # fmt: skip
        how = {"most": most, "stop": () if port else stop, "room": room}
        expected = simulated(scored_by(script), PROMPT, rules, **how)
        other = rules._replace(from_window=not rules.from_window)
        differ += simulated(scored_by(script), PROMPT, other, **how) != expected
        for side in SIDES:
            tokens, steps, _ = made(side, chosen, most=most, stop=stop, room=room, entropies=script)
            assert (tokens, [list(step.positions) for step in steps]) == expected
    # In the port nothing leaves before masks are looked at, so the window begins with a mask.
    assert differ == 0 if port else differ >= 3
