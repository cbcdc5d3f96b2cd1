"""The corpus of the demo model: every question it is taught, and those kept back to test it.

    python -m lockstep.parity.demo.make_corpus --seed 2 > corpus.jsonl

Which items are kept back depends on nothing but the seed and the item itself (a hash), so the
split is the same on every machine and Python version.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from lockstep.parity.demo import world

LARGEST = 20
LONGEST_COUNT = 5

# In these kinds the fact itself is kept back, in all its wordings: the answer has to be computed.
# In the others a fact cannot be guessed, so one wording of some facts is kept back instead.
COMPUTED = ("sum", "difference", "count")


@dataclass(frozen=True)
class Example:
    """One question with its one right answer."""

    kind: str
    question: str
    answer: str
    held_out: bool


@dataclass(frozen=True)
class Fact:
    """One thing to know, and the ways to ask for it. Facts with equal keys are split together."""

    kind: str
    key: str
    questions: tuple[str, ...]
    answer: str


def make_corpus(seed: int) -> list[Example]:
    """All examples, in a fixed order; `held_out` marks those that training must not see."""
    return [example for fact in facts() for example in _examples_of(fact, seed)]


def facts() -> Iterator[Fact]:
    """Every fact of the small world."""
    yield from _sums()
    yield from _differences()
    yield from _counts()
    yield from _neighbours("number", "number", tuple(str(n) for n in range(LARGEST + 1)))
    yield from _neighbours("day", "day", world.DAYS, wraps=True)
    yield from _neighbours("month", "month", world.MONTHS, wraps=True)
    yield from _opposites()
    yield from _colours()
    yield from _plurals()
    yield from _capitals()
    for number, (questions, answer) in enumerate(world.TALK):
        yield Fact("talk", str(number), questions, answer)


def _examples_of(fact: Fact, seed: int) -> Iterator[Example]:
    chosen = _hash(seed, fact.kind, fact.key) % 8 == 0
    kept_back = _hash(seed, "wording", fact.kind, fact.key) % len(fact.questions)
    for number, question in enumerate(fact.questions):
        held_out = chosen and (fact.kind in COMPUTED or number == kept_back)
        yield Example(fact.kind, question, fact.answer, held_out)


def _hash(seed: int, *parts: str) -> int:
    text = "|".join((str(seed), *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _sums() -> Iterator[Fact]:
    for a in range(LARGEST + 1):
        for b in range(LARGEST + 1):
            questions = (
                f"What is {a}+{b}?",
                f"What is {a} + {b}?",
                f"How much is {a} plus {b}?",
                f"Add {a} and {b}.",
            )
            # 3 + 5 and 5 + 3 share a key: neither may give the other away.
            key = f"{min(a, b)}+{max(a, b)}"
            yield Fact("sum", key, questions, f"{a} + {b} equals {a + b}.")


def _differences() -> Iterator[Fact]:
    for a in range(LARGEST + 1):
        for b in range(a + 1):
            questions = (
                f"What is {a}-{b}?",
                f"What is {a} - {b}?",
                f"How much is {a} minus {b}?",
                f"Take {b} away from {a}.",
            )
            yield Fact("difference", f"{a}-{b}", questions, f"{a} - {b} equals {a - b}.")


def _counts() -> Iterator[Fact]:
    for first in range(LARGEST):
        for last in range(first + 1, min(first + LONGEST_COUNT, LARGEST + 1)):
            questions = (
                f"Count from {first} to {last}.",
                f"Can you count from {first} to {last}?",
            )
            answer = ", ".join(str(n) for n in range(first, last + 1)) + "."
            yield Fact("count", f"{first}..{last}", questions, answer)


def _neighbours(
    kind: str, noun: str, items: tuple[str, ...], *, wraps: bool = False
) -> Iterator[Fact]:
    pairs = list(itertools.pairwise(items))
    if wraps:
        pairs.append((items[-1], items[0]))
    for earlier, later in pairs:
        after = (f"What {noun} comes after {earlier}?", f"Which {noun} follows {earlier}?")
        before = (f"What {noun} comes before {later}?", f"Which {noun} is before {later}?")
        yield Fact(kind, f"after {earlier}", after, f"{later} comes after {earlier}.")
        yield Fact(kind, f"before {later}", before, f"{earlier} comes before {later}.")


def _opposites() -> Iterator[Fact]:
    for pair in world.OPPOSITES:
        for word, other in (pair, pair[::-1]):
            questions = (
                f"What is the opposite of {word}?",
                f"Tell me the opposite of {word}.",
            )
            yield Fact("opposite", word, questions, f"The opposite of {word} is {other}.")


def _colours() -> Iterator[Fact]:
    for thing, colour in world.COLOURS:
        questions = (f"What colour is {thing}?", f"Which colour does {thing} have?")
        answer = f"{thing[0].upper()}{thing[1:]} is {colour}."
        yield Fact("colour", thing, questions, answer)


def _plurals() -> Iterator[Fact]:
    for one, many in world.PLURALS:
        questions = (f"What is the plural of {one}?", f"Tell me the plural of {one}.")
        yield Fact("plural", one, questions, f"The plural of {one} is {many}.")


def _capitals() -> Iterator[Fact]:
    for country, city in world.CAPITALS:
        questions = (
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
        )
        yield Fact("capital", country, questions, f"The capital of {country} is {city}.")


def main() -> None:
    """Print the corpus, one JSON object a line."""
    parser = argparse.ArgumentParser(description="Print the demo model's corpus as JSON lines.")
    parser.add_argument("--seed", type=int, default=2)
    for example in make_corpus(parser.parse_args().seed):
        print(json.dumps(asdict(example), ensure_ascii=False))


if __name__ == "__main__":
    main()
