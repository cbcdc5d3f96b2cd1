"""Texts that are in flight together are those of their single runs, on every backend. By law."""

import itertools

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.fast.decoding import autoregressive as fast_autoregressive
from lockstep.fast.decoding import continuous as fast_continuous
from lockstep.fast.decoding import sampling as fast_sampling
from lockstep.parity.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import autoregressive as reference_autoregressive
from lockstep.reference.decoding import continuous as reference_continuous
from lockstep.reference.decoding import sampling as reference_sampling
from lockstep.reference.tokenizer.in_flight import Prompt
from lockstep.reference.tokenizer.sampling_options import SamplingOptions
from tests.fast.decoding.test_autoregressive import Evaluations
from tests.parity.conftest import DEMO, MODELS

GEMMA = DEMO.parent / "gemma4"
SIDES = {
    "reference": reference.load,
    "cpu": lambda path: fast.load(path, backend="cpu"),
    "mlx": lambda path: fast.load(path, backend="mlx"),
}
DRAWN = SamplingOptions(0.9, top_p=0.95, presence_penalty=0.2)


def package_of(model):
    if hasattr(model, "backend"):
        return fast_continuous, fast_autoregressive, fast_sampling
    return reference_continuous, reference_autoregressive, reference_sampling


def specifications(model, count, *, seed=0, longest=40):
    """Return prompts of all lengths with their ends, every second one to be drawn."""
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(0, model.config.vocab_size, rng.integers(1, longest)).tolist(),
         int(rng.integers(1, 20)), frozenset(rng.integers(0, 700, 8).tolist()), bool(number % 2))
        for number in range(count)
    ]  # fmt: skip


def chooser(model, number, tokens, drawn):
    sampling = package_of(model)[2]
    return sampling.Sampler(DRAWN, seeded(number), tokens) if drawn else sampling.greedy


def prompts(model, chosen):
    for number, (tokens, count, stop, drawn) in enumerate(chosen):
        yield Prompt(tokens, count, stop, chooser(model, number, tokens, drawn))


def together(model, chosen, *, slots, chunk=None) -> list[list[int]]:
    texts, ended = [[] for _ in chosen], []
    for one in package_of(model)[0].generate(model, prompts(model, chosen), slots=slots,
                                             chunk=chunk):  # fmt: skip
        assert one.text not in ended
        texts[one.text].append(one.token)
        ended += [one.text] if one.last else []
    assert sorted(ended) == list(range(len(chosen)))
    return texts


def alone(model, chosen) -> list[list[int]]:
    generate = package_of(model)[1].generate
    return [
        list(generate(model, tokens, max_tokens=count, stop=stop,
                      choose=chooser(model, number, tokens, drawn)))
        for number, (tokens, count, stop, drawn) in enumerate(chosen)
    ]  # fmt: skip


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("path", [DEMO, GEMMA, MODELS / "sliding_bfloat16"],
                         ids=lambda path: path.name)  # fmt: skip
def test_every_text_is_that_of_its_single_run(side, path):
    """Greedy and drawn among each other, beyond the windows of sliding layers."""
    model = SIDES[side](path)
    chosen = specifications(model, 12)
    expected = alone(model, chosen)
    assert len({len(text) for text in expected}) > 4
    assert together(model, chosen, slots=5, chunk=16) == expected


@pytest.mark.parametrize("slots", [1, 3, 12, 30])
def test_how_many_are_in_flight_changes_nothing(slots):
    model = SIDES["cpu"](DEMO)
    chosen = specifications(model, 12, seed=slots)
    assert together(model, chosen, slots=slots) == alone(model, chosen)


@pytest.mark.parametrize("side", SIDES)
def test_a_mistake_of_the_masks_would_be_seen(side, monkeypatch):
    """Rows that see the padding behind them, and so what others left there, write other texts."""
    model = SIDES[side](DEMO)
    chosen = specifications(model, 8)
    slots = package_of(model)[0].Slots
    blind = slots.extend
    monkeypatch.setattr(slots, "extend", lambda self, new: np.maximum(blind(self, new), 0))
    assert together(model, chosen, slots=4) != alone(model, chosen)


def test_memory_does_not_grow_with_the_texts_that_have_been():
    model = SIDES["cpu"](MODELS / "tied_bfloat16")
    batch = fast_continuous.Batch(model, 4, None)
    chosen = specifications(model, 80)
    sizes = set()
    rows = fast_continuous.in_flight(prompts(model, chosen), batch, slots=4)
    for _ in rows:
        sizes.add(sum(buffer.nbytes for buffer in batch.rows.arrays()))
    assert len(sizes - {0}) == 1
    assert batch.rows.lengths == []


@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "drawn"])
def test_mlx_evaluates_once_a_step_and_once_a_prompt(monkeypatch, drawn):
    model = SIDES["mlx"](MODELS / "tied_bfloat16")
    chosen = [([1, 2, 3], 6, (), drawn), ([4], 6, (), drawn), ([5, 6], 3, (), drawn)]
    with monkeypatch.context() as patch:
        evaluations = Evaluations(patch)
        texts = together(model, chosen, slots=3)
        assert evaluations.count == 3 + 5
    assert [len(text) for text in texts] == [6, 6, 3]


@pytest.mark.parametrize("side", SIDES)
def test_a_prompt_of_nothing_is_refused(side):
    model = SIDES[side](MODELS / "tied_bfloat16")
    with pytest.raises(InputError, match="the prompt has no tokens"):
        together(model, [([], 3, (), False)], slots=1)


def test_prompts_are_taken_when_there_is_room():
    model = SIDES["cpu"](MODELS / "tied_bfloat16")
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield Prompt([number % 50], 5, (), fast_sampling.greedy)

    made = fast_continuous.generate(model, endless(), slots=3)
    for _ in range(3 * 5 * 4):
        next(made)
    assert len(taken) <= 15
