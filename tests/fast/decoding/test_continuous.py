"""Texts that are in flight together are those of their single runs, on every backend. By law."""

import itertools

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.fast.decoding import autoregressive as fast_autoregressive
from lockstep.fast.decoding import continuous as fast_continuous
from lockstep.fast.decoding import sampling as fast_sampling
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import autoregressive as reference_autoregressive
from lockstep.reference.decoding import continuous as reference_continuous
from lockstep.reference.decoding import sampling as reference_sampling
from lockstep.reference.scheduling import rows
from lockstep.reference.scheduling.in_flight import Prompt, in_flight
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests.fast.decoding.test_autoregressive import Evaluations
from tests.parity.conftest import DEMO, MODELS
from tests.sampled import sampled

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


@sampled(1, "sliding_bfloat16-cpu")
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


@sampled(1, "3")
@pytest.mark.parametrize("slots", [1, 3, 12, 30])
def test_how_many_are_in_flight_changes_nothing(slots):
    model = SIDES["cpu"](DEMO)
    chosen = specifications(model, 12, seed=slots)
    assert together(model, chosen, slots=slots) == alone(model, chosen)


@sampled(1, "cpu")
@pytest.mark.parametrize("side", SIDES)
def test_a_mistake_of_the_masks_would_be_seen(side, monkeypatch):
    """Rows that see the padding behind them, and so what others left there, write other texts."""
    model = SIDES[side](DEMO)
    chosen = specifications(model, 8)
    slots = rows.Slots
    blind = slots.extend
    monkeypatch.setattr(slots, "extend", lambda self, new: np.maximum(blind(self, new), 0))
    assert together(model, chosen, slots=4) != alone(model, chosen)


def test_memory_does_not_grow_with_the_texts_that_have_been():
    model = SIDES["cpu"](MODELS / "tied_bfloat16")
    batch = fast_continuous.rows_of(model, 4, None)
    chosen = specifications(model, 80)
    sizes = set()
    for _ in in_flight(prompts(model, chosen), batch, slots=4):
        sizes.add(sum(buffer.nbytes for buffer in batch.rows.arrays()))
    assert len(sizes - {0}) == 1
    assert batch.rows.lengths == []


@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "drawn"])
def test_mlx_evaluates_once_a_step_and_once_for_prompts_of_a_length(monkeypatch, drawn):
    model = SIDES["mlx"](MODELS / "tied_bfloat16")
    chosen = [([1, 2, 3], 6, (), drawn), ([4], 6, (), drawn), ([5, 6], 3, (), drawn)]
    with monkeypatch.context() as patch:
        evaluations = Evaluations(patch)
        texts = together(model, chosen, slots=3)
        assert evaluations.count == 2 + 5  # three and two tokens are read together
    assert [len(text) for text in texts] == [6, 6, 3]


class Refusing:
    """Takes the largest, and what is no number for one from the third time on."""

    def __init__(self, sampling):
        self.sampling, self.count = sampling, 0

    def __call__(self, logits):
        self.count += 1
        return self.sampling.greedy(logits * np.nan if self.count > 2 else logits)


@pytest.mark.parametrize("side", SIDES)
def test_a_text_that_fails_ends_alone_as_its_single_run_does(side):
    """An empty prompt, an unknown id, logits of NaN, a setting that the engine refuses."""
    model = SIDES[side](MODELS / "tied_bfloat16")
    vocabulary = model.config.vocab_size
    _, autoregressive, sampling = package_of(model)
    refused = SamplingOptions(1.0, top_k=vocabulary, semantics="mlx-lm")

    def all_of():
        good = [Prompt([number, 7], 6, (), sampling.greedy) for number in range(4)]
        return [
            good[0], Prompt([], 6, (), sampling.greedy), good[1],
            Prompt([3, vocabulary], 6, (), sampling.greedy),
            Prompt([1, 2], 6, (), Refusing(sampling)), good[2],
            Prompt([1, 2], 6, (), sampling.Sampler(refused, seeded(1), [1, 2])), good[3],
        ]  # fmt: skip

    texts = [ended(autoregressive, model, prompt) for prompt in all_of()]
    assert [len(tokens) for tokens, _ in texts] == [6, 0, 6, 0, 2, 6, 0, 6]
    for slots in (2, 8):
        found = [([], "") for _ in texts]
        for one in package_of(model)[0].generate(model, all_of(), slots=slots):
            tokens, _ = found[one.text]
            if one.error is None:
                tokens.append(one.token)
            found[one.text] = (tokens, "" if one.error is None else str(one.error))
        assert found == texts


def ended(autoregressive, model, prompt) -> tuple[list[int], str]:
    """Return the tokens of a single run, and what it was refused for."""
    tokens = []
    try:
        for token in autoregressive.generate(model, prompt.tokens, max_tokens=prompt.max_tokens,
                                             stop=prompt.stop, choose=prompt.choose):  # fmt: skip
            tokens.append(token)
    except InputError as error:
        return tokens, str(error)
    return tokens, ""


@sampled(1, "cpu")
@pytest.mark.parametrize("side", SIDES)
def test_a_text_that_fills_the_context_ends_alone(side):
    """GPT-2 has learned positions, and none beyond them."""
    model = SIDES[side](MODELS.parent / "gpt2/original")
    _, autoregressive, sampling = package_of(model)
    limit = model.checkpoint.position_limit
    chosen = [Prompt([5] * length, 4, (), sampling.greedy) for length in (limit - 2, limit + 1, 3)]
    texts = [ended(autoregressive, model, prompt) for prompt in chosen]
    assert [len(tokens) for tokens, _ in texts] == [3, 0, 4]
    assert all("the model has positions" in error for _, error in texts[:2])
    found = {}
    for one in package_of(model)[0].generate(model, chosen, slots=3):
        tokens, _ = found.setdefault(one.text, ([], ""))
        tokens += [] if one.error else [one.token]
        found[one.text] = (tokens, str(one.error) if one.error else "")
    assert [found[number] for number in range(3)] == texts


def test_an_error_that_is_no_inputs_ends_all():
    def broken(logits):
        raise RuntimeError("a bug")

    model = SIDES["cpu"](MODELS / "tied_bfloat16")
    with pytest.raises(RuntimeError, match="a bug"):
        list(fast_continuous.generate(model, [Prompt([1], 2, (), broken)], slots=1))


def test_prompts_of_about_one_length_are_read_together():
    """By hand: 4 to 7, 8 to 15, up to 256 tokens with the padding; longer than a chunk is alone."""
    assert rows.groups([9, 4, 1, 7, 15, 40, 33], None) == [[2], [1, 3], [0, 4], [6, 5]]
    assert rows.groups([9, 4, 40, 33, 8], 32) == [[1], [4, 0], [3], [2]]
    assert rows.groups([9, 10, 8], 9) == [[2, 0], [1]]
    assert rows.groups([60] * 5, None) == [[0, 1, 2, 3], [4]]
    assert rows.groups([80, 90, 81, 300], None) == [[0, 2], [1], [3]]
    assert rows.groups([], None) == []


READ = {  # with rope that goes by the length, beyond the one that it begins at; windows; experts
    "dynamic": "llama/llama_dynamic", "longrope": "llama/llama_longrope",
    "window": "llama/mistral_window", "gpt2": "gpt2/original", "gemma4": "gemma4/effective",
}  # fmt: skip


@sampled(3, "gemma4-cpu")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", READ)
def test_prompts_that_are_read_together_are_read_as_alone(side, name):
    path = MODELS.parent / READ[name]
    model = SIDES[side](path)
    _, autoregressive, sampling = package_of(model)
    rng = np.random.default_rng(3)
    texts = [rng.integers(1, model.config.vocab_size, count).tolist()
             for count in (40, 33, 50, 17, 30, 22)]  # fmt: skip
    assert max(map(len, rows.groups([len(text) for text in texts], None))) >= 3
    found = [[] for _ in texts]
    chosen = [Prompt(text, 6, (), sampling.greedy) for text in texts]
    for one in package_of(model)[0].generate(model, chosen, slots=6):
        found[one.text].append(one.token)
    assert found == [ended(autoregressive, model, prompt)[0] for prompt in chosen]


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
