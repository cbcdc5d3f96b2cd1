"""Generation from a stand-in for a model, by hand: what is fed, what ends it, what is refused."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import reference
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.autoregressive import generate
from lockstep.reference.decoding.sampling import greedy
from tests.parity.conftest import MODELS

VOCABULARY = 10


class Fed(list):
    """What was fed, in the place of a cache that holds nothing."""

    positions = SimpleNamespace(length=0)


class Counter:
    """A model whose best next token is the last one plus one; it notes what it was fed."""

    checkpoint = SimpleNamespace(path=Path("counter"))
    config = SimpleNamespace(num_hidden_layers=0)

    def __init__(self):
        self.fed, self.heads = Fed(), 0

    def make_cache(self):
        return self.fed

    def stages(self, tokens, *, cache, last_only=False):
        cache.append(list(tokens[0]))
        yield "model.embed_tokens", np.zeros((1, 1, 4), np.float32)
        assert last_only
        self.heads += 1
        logits = np.zeros((1, 1, VOCABULARY), np.float32)
        logits[0, 0, (tokens[0][-1] + 1) % VOCABULARY] = 1
        yield "logits", logits


def run(tokens, count, stop=(), choose=greedy):
    model = Counter()
    return list(generate(model, tokens, max_tokens=count, stop=stop, choose=choose)), model.fed


def test_the_prompt_is_fed_once_and_then_each_new_token():
    assert run([3, 4], 3) == ([5, 6, 7], [[3, 4], [5], [6]])


def test_a_stop_id_is_given_and_ends_it():
    assert run([3], 9, stop={5, 6}) == ([4, 5], [[3], [4]])
    assert run([4], 9, stop={5}) == ([5], [[4]])


def test_no_stop_id_is_no_end():
    assert run([8], 4)[0] == [9, 0, 1, 2]


@pytest.mark.parametrize(
    ("chunk", "fed"),
    [
        (1, [[3], [1], [4], [5]]),
        (2, [[3, 1], [4], [5]]),
        (3, [[3, 1, 4], [5]]),
        (9, [[3, 1, 4], [5]]),
    ],
)
def test_a_prompt_is_fed_in_chunks_and_the_head_runs_for_the_last_alone(chunk, fed):
    """By hand."""
    model = Counter()
    options = {"max_tokens": 2, "stop": (), "choose": greedy}
    assert list(generate(model, [3, 1, 4], **options, chunk=chunk)) == [5, 6]
    assert (model.fed, model.heads) == (fed, 2)


@pytest.mark.parametrize("chunk", [0, -1])
def test_chunks_of_nothing_are_refused(chunk):
    options = {"max_tokens": 2, "stop": (), "choose": greedy}
    with pytest.raises(InputError, match=f"chunk: {chunk}, but should be 1 or more"):
        next(generate(Counter(), [3, 1, 4], **options, chunk=chunk))


def test_nothing_asked_for_is_nothing_computed():
    assert run([3], 0) == ([], [])


def test_a_token_is_computed_when_it_is_asked_for():
    model = Counter()
    tokens = generate(model, [1], max_tokens=5, stop=(), choose=greedy)
    assert (next(tokens), model.fed) == (2, [[1]])
    assert (next(tokens), model.fed) == (3, [[1], [2]])


def test_an_empty_prompt_is_refused():
    with pytest.raises(InputError, match="the prompt has no tokens"):
        run([], 3)


def test_the_chooser_gets_the_last_tokens_logits():
    seen = []

    def choose(logits):
        seen.append(logits.shape)
        return 2

    assert run([1, 2, 3], 2, choose=choose)[0] == [2, 2]
    assert seen == [(VOCABULARY,)] * 2


@pytest.mark.parametrize("name", ["untied_float32", "affine_mixed"])
def test_what_the_cache_gives_is_what_the_whole_text_gives(name):
    """By law: each token is the greedy choice after everything before it, computed anew."""
    model, text = reference.load(MODELS / name), [5, 6, 7]
    for token in generate(model, text, max_tokens=5, stop=(), choose=greedy):
        assert token == greedy(model.forward([text])[0, -1])
        text = [*text, token]


def test_stages_are_told_as_they_are_done():
    """By hand: two stages a token, told before the token is chosen."""
    told = []
    made = generate(Counter(), [3], max_tokens=2, stop=(), choose=greedy, watch=told.append)
    assert (next(made), told) == (4, ["model.embed_tokens", "logits"])
    assert (next(made), len(told)) == (5, 4)
