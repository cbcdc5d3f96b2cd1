"""Measure how drawn choices are judged, and renew choices.md: `python docs/measure_choices.py`.

Answers are drawn from logits that are random themselves, from seeds that are fixed: right ones by
every engine's rules, and wrong ones by bugs that are planted. None of them says its random numbers.
"""

import re
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
RUNS = {"lockstep": 5, "llama.cpp": 1, "mlx-lm": 1, "vllm": 1}  # an engine's own rules take longer
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


def answered(seed: int, count: int, settings: Settings, edits: Sequence[Edit] = ()) -> Run:
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


def accused() -> Iterator[tuple[str, int, int]]:
    """Yield for each engine how many right answers were judged, and how many were accused."""
    for engine, runs in RUNS.items():
        found = [
            judged(answered(1000 * at + count, count, replace(one, semantics=engine)))
            for at in range(runs)
            for one in (COOL, WARM, SHY, PLAIN)
            for count in COUNTS
        ]
        yield engine, len(found), sum(one.verdict != "clean" for one in found)


def named(runs: int) -> Iterator[tuple[str, str, list[int]]]:
    """Yield for each bug and number of choices how often it was named, or told to fit as well."""
    for id, variant, settings in PLANTED:
        edit = next(one.variants[variant] for one in SAMPLING if one.id == id)
        yield (
            id,
            variant,
            [
                sum(is_told(id, answered(7 + at, count, settings, [edit])) for at in range(runs))
                for count in COUNTS
            ],
        )


def is_told(id: str, run: Run) -> bool:
    return any(id in (one.id, *one.also_fits) for one in judged(run).faults)


def tables(wrong: int) -> dict[str, str]:
    """Return both tables, by the names that the page has for them."""
    lines = ["| right samplers | answers | accused |", "|---|---|---|"]
    lines += [f"| {engine} | {count} | {bad} |" for engine, count, bad in accused()]
    heads = " | ".join(f"of {count} choices" for count in COUNTS)
    rows = ["| bug | " + heads + " |", "|---|" + "---|" * len(COUNTS)]
    for id, variant, found in named(wrong):
        name = f"`{id}`" + (f", {variant}" if variant else "")
        rows.append(f"| {name} | " + " | ".join(f"{one} of {wrong}" for one in found) + " |")
    return {"alarms": "\n".join(lines) + "\n", "power": "\n".join(rows) + "\n"}


def renewed(page: str, made: dict[str, str]) -> str:
    return TABLE.sub(lambda one: one[1] + made[one[2]] + one[3], page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8"), tables(5)), "utf-8")
