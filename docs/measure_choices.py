"""Measure how drawn choices are judged, and renew choices.md: `python docs/measure_choices.py`.

Answers are drawn from logits that are random themselves, from seeds that are fixed: right ones by
every engine's rules, and wrong ones by bugs that are planted. None of them says its random numbers.
It goes in rounds. After each one the tables are written with what was counted so far, so that a run
that is cut off has lost nothing and says no more than it did. `ROUNDS` may be given, and `PAGE`.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lockstep.parity.chain.drawing import judge_drawn
from lockstep.parity.chain.replay import Run
from lockstep.parity.chain.sampler import Sampler, Settings, Step
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.faults.around import mistakes
from lockstep.parity.faults.mistake import Edit

PAGE = Path(__file__).parent / "parity/choices.md"
TABLE = re.compile(r"(<!-- measured (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
VOCABULARY, PROMPT, COUNTS = 200, 30, (25, 100, 250)
SAMPLING = [one for one in mistakes() if one.family == "sampling"]
COOL, WARM = Settings(0.8, top_k=20, top_p=0.9), Settings(1.3, top_p=0.8, min_p=0.05)
SHY = Settings(0.9, top_k=40, repetition_penalty=1.3, presence_penalty=0.5)
PLAIN = Settings(0.7)
ROUNDS = 16
RIGHT = (COOL, WARM, SHY, PLAIN)
RUNS = {"lockstep": 4, "llama.cpp": 1, "mlx-lm": 1, "vllm": 1}  # a round; an engine's take longer
WRONG = 2  # a round and cell
SEED = 20261121  # chosen after the rules were made, and never to be tuned to
PLANTED = (
    ("temperature-misapplied", "l / T^2", PLAIN),
    ("sampler-setting-ignored", "temperature, taken for 1", PLAIN),
    ("sampler-setting-ignored", "temperature, taken for 0: greedy", PLAIN),
    ("sampler-setting-ignored", "top-p", Settings(0.5, top_p=0.7)),
    ("top-p-excludes-crossing", "", Settings(0.5, top_p=0.7)),
    ("top-k-off-by-one", "one more", Settings(1.0, top_k=5)),
    ("top-k-off-by-one", "one fewer", Settings(1.0, top_k=5)),
    ("sampler-setting-ignored", "repetition penalty", SHY),
    ("rep-penalty-sign", "", Settings(0.9, repetition_penalty=1.5)),
    ("logits-of-an-earlier-row", "", COOL),
)


class Rows:
    """Logits that were drawn, with a few tokens far above the rest."""

    own = True

    def __init__(self, draw: np.random.Generator, count: int):
        self.found = [3 * draw.standard_normal(VOCABULARY) for _ in range(count + 1)]

    def rows(self, fed: Sequence[int]) -> tuple[list[np.ndarray | None], np.ndarray | None]:
        return [*self.found], self.found[-1]


def answered(
    seed: Sequence[int], count: int, settings: Settings, edits: Sequence[Edit] = ()
) -> Run:
    """Return an answer of a port that says `settings`, and draws with `edits`."""
    draw = np.random.default_rng(seed)
    rows, tokens = Rows(draw, count), draw.integers(0, VOCABULARY, PROMPT).tolist()
    sampler, answer = Sampler(settings, draw.random(count).tolist(), edits), []
    for number in range(count):
        before = rows.found[number - 1] if number else rows.found[-1]
        answer.append(sampler.choose(Step(number, rows.found[number], before, tokens, answer[:])))
    return Run(rows, tokens, answer, replace(settings, semantics="lockstep"), None)


def judged(run: Run) -> Diagnosis:
    found = Diagnosis()
    judge_drawn(run, SAMPLING, found)
    return found


def right_answers(turn: int) -> Iterator[tuple[str, Run]]:
    """Yield each answer of a round that is right, with the engine by whose rules it was drawn."""
    for number, (engine, runs) in enumerate(RUNS.items()):
        for at in range(turn * runs, (turn + 1) * runs):
            for form, settings in enumerate(RIGHT):
                for count in COUNTS:
                    said = replace(settings, semantics=engine)
                    yield engine, answered((SEED, 0, number, at, form, count), count, said)


def wrong_answers(bug: int, count: int, turn: int) -> Iterator[Run]:
    """Yield each answer of a round that has one bug of `PLANTED`."""
    id, variant, settings = PLANTED[bug]
    edit = next(one.variants[variant] for one in SAMPLING if one.id == id)
    for at in range(turn * WRONG, (turn + 1) * WRONG):
        yield answered((SEED, 1, bug, at, count), count, settings, [edit])


def is_told(id: str, run: Run) -> bool:
    return any(id in (one.id, *one.also_fits) for one in judged(run).faults)


def counted(turn: int) -> tuple[Counter, Counter]:
    """Return how many answers of a round there were, and how many were accused, or told."""
    made, found = Counter(), Counter()
    for engine, run in right_answers(turn):
        made[engine] += 1
        found[engine] += judged(run).verdict != "clean"
    for bug, (id, *_) in enumerate(PLANTED):
        for count in COUNTS:
            for run in wrong_answers(bug, count, turn):
                made[bug, count] += 1
                found[bug, count] += is_told(id, run)
    return made, found


def tables(made: Counter, found: Counter) -> dict[str, str]:
    """Return both tables, by the names that the page has for them."""
    lines = ["| right samplers | answers | accused |", "|---|---|---|"]
    lines += [f"| {engine} | {made[engine]} | {found[engine]} |" for engine in RUNS]
    heads = " | ".join(f"of {count} choices" for count in COUNTS)
    rows = ["| bug | " + heads + " |", "|---|" + "---|" * len(COUNTS)]
    for bug, (id, variant, _) in enumerate(PLANTED):
        name = f"`{id}`" + (f", {variant}" if variant else "")
        cells = (f"{found[bug, count]} of {made[bug, count]}" for count in COUNTS)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return {"alarms": "\n".join(lines) + "\n", "power": "\n".join(rows) + "\n"}


def renewed(page: str, made: dict[str, str]) -> str:
    return TABLE.sub(lambda one: one[1] + made[one[2]] + one[3], page)


def main(rounds: int, page: Path) -> None:
    made, found = Counter(), Counter()
    for turn in range(rounds):
        for total, more in zip((made, found), counted(turn), strict=True):
            total.update(more)
        page.write_text(renewed(page.read_text("utf-8"), tables(made, found)), "utf-8")


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Renew the tables of choices.md.")
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS, metavar="ROUNDS")
    parser.add_argument("page", type=Path, nargs="?", default=PAGE, metavar="PAGE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(**vars(parsed(sys.argv[1:])))
