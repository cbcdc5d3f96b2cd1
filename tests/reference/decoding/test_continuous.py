"""Which texts are in flight, and when. By hand, with rows that count."""

import itertools
from types import SimpleNamespace

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.continuous import Batch
from lockstep.reference.tokenizer.in_flight import Made, Prompt, in_flight


class Counting:
    """Rows of texts whose next token is one more than the last; they note what is done."""

    def __init__(self):
        self.done, self.rows = [], []

    def read(self, prompt):
        self.done.append(("read", prompt.tokens[-1]))
        return prompt.tokens[-1] + 1, prompt.tokens[-1]

    def join(self, cache):
        self.rows.append(cache)

    def step(self, tokens, prompts):
        assert [prompt.tokens[-1] for prompt in prompts] == self.rows
        self.done.append(("step", *tokens))
        return [token + 1 for token in tokens]

    def leave(self, row):
        self.rows[row] = self.rows[-1]
        self.rows.pop()


def prompt(start: int, count: int, stop=()) -> Prompt:
    return Prompt([start], count, stop, lambda logits: 0)


def test_a_slot_that_is_free_is_the_next_prompts():
    """Three texts in two slots: the second ends first, the third takes its place."""
    rows = Counting()
    made = list(in_flight([prompt(10, 4), prompt(20, 2), prompt(30, 2)], rows, slots=2))
    assert made == [
        Made(0, 11, False), Made(1, 21, False),
        Made(0, 12, False), Made(1, 22, True),
        Made(2, 31, False),
        Made(0, 13, False), Made(2, 32, True),
        Made(0, 14, True),
    ]  # fmt: skip
    assert rows.done == [
        ("read", 10), ("read", 20), ("step", 11, 21), ("read", 30), ("step", 12, 31), ("step", 13),
    ]  # fmt: skip
    assert rows.rows == []


def test_a_stop_id_and_a_single_token_end_a_text():
    rows = Counting()
    made = list(in_flight([prompt(1, 9, {3}), prompt(5, 1), prompt(7, 9, {8})], rows, slots=3))
    assert made == [Made(0, 2, False), Made(1, 6, True), Made(2, 8, True), Made(0, 3, True)]


def test_endless_prompts_are_taken_one_by_one():
    taken = itertools.count()
    made = in_flight((prompt(next(taken), 3) for _ in itertools.count()), Counting(), slots=4)
    for _ in range(40):
        next(made)
    assert next(taken) < 20


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 20])
def test_every_text_is_whole_for_any_number_of_slots(slots):
    """By law: no token lost, none mixed, one last one each."""
    lengths = [3, 1, 7, 2, 2, 9, 1, 4, 6, 1, 5]
    texts = {}
    for one in in_flight([prompt(100 * n, k) for n, k in enumerate(lengths)], Counting(),
                         slots=slots):  # fmt: skip
        texts.setdefault(one.text, []).append((one.token, one.last))
    for number, length in enumerate(lengths):
        wanted = [(100 * number + at, at == length) for at in range(1, length + 1)]
        assert texts[number] == wanted


def test_what_is_refused():
    with pytest.raises(ValueError, match="max_tokens=0, but should be 1 or more"):
        next(in_flight([prompt(1, 0)], Counting(), slots=1))
    model = SimpleNamespace(checkpoint=SimpleNamespace(path="model"))
    with pytest.raises(InputError, match="the prompt has no tokens"):
        Batch(model, 1, None).read(Prompt([], 1, (), lambda logits: 0))  # pyright: ignore
