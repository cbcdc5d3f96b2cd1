"""Which texts are in flight, and when. By hand, with rows that count."""

import itertools

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.in_flight import Made, Prompt, in_flight

NOT_READ, NOT_FED, NOT_CHOSEN = (InputError("prompt", what) for what in ("bad", "full", "NaN"))


class Counting:
    """Rows of texts whose next token is one more than the last; they note what is done."""

    def __init__(self):
        self.done, self.rows = [], []

    def read(self, prompts):
        starts = [prompt.tokens[-1] for prompt in prompts]
        self.done.append(("read", *starts))
        return [
            (place, NOT_READ if start == 404 else (start + 1, start))
            for place, start in enumerate(starts)
        ]

    def join(self, cache):
        self.rows.append(cache)

    def refused(self, row, token):
        return NOT_FED if token == 66 else None

    def step(self, tokens, prompts):
        assert [prompt.tokens[-1] for prompt in prompts] == self.rows
        self.done.append(("step", *tokens))
        return [NOT_CHOSEN if token == 55 else token + 1 for token in tokens]

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
        ("read", 10, 20), ("step", 11, 21), ("read", 30), ("step", 12, 31), ("step", 13),
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


def test_a_text_that_fails_ends_alone():
    """One is not read, one cannot be fed 66, of one nothing can be chosen after 55."""
    rows = Counting()
    prompts = [prompt(404, 9), prompt(64, 9), prompt(10, 4), prompt(54, 9), prompt(404, 9)]
    made = list(in_flight(prompts, rows, slots=3))
    assert made == [
        Made(0, None, True, NOT_READ), Made(1, 65, False), Made(2, 11, False),
        Made(1, 66, False), Made(2, 12, False), Made(3, 55, False), Made(1, None, True, NOT_FED),
        Made(3, None, True, NOT_CHOSEN), Made(2, 13, False), Made(4, None, True, NOT_READ),
        Made(2, 14, True),
    ]  # fmt: skip
    assert rows.rows == []


def test_that_all_fail_is_no_end():
    """Those who wait are taken when those in flight have failed."""
    made = list(in_flight([prompt(65, 9), prompt(404, 9), prompt(8, 1)], Counting(), slots=1))
    assert [(one.text, one.token, one.error) for one in made] == [
        (0, 66, None), (0, None, NOT_FED), (1, None, NOT_READ), (2, 9, None),
    ]  # fmt: skip


def test_prompts_that_end_at_once_starve_nobody():
    """By hand: an endless stream of them beside a text of five tokens, which gets one a turn."""
    short = (prompt(1000 + number, 1) for number in itertools.count())
    made = in_flight(itertools.chain([prompt(10, 5)], short), Counting(), slots=2)
    assert [one.token for one in itertools.islice(made, 10) if one.text == 0] == [*range(11, 16)]


@pytest.mark.parametrize("slots", [0, -1])
def test_no_slots_are_refused(slots):
    with pytest.raises(InputError, match=f"slots: {slots}, but should be 1 or more"):
        next(in_flight([prompt(1, 1)], Counting(), slots=slots))


def test_a_text_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="max_tokens=0, but should be 1 or more"):
        prompt(1, 0)
