"""`python -m lockstep.parity.bench.soak MODEL`: many texts in flight for long, each one checked.

Random prompts of unequal length come without end, half of them greedy, half drawn from numbers of
their own; one of sixteen is bad, and has to end alone with an error. Each answer is held against
its single run, token for token. Memory is looked at all along. Exit code 0 says that no answer was
wrong or lost and, of a run of a minute or more, that memory stayed flat.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.bench.memory import peak_bytes
from lockstep.parity.decoders.request import decoding
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.in_flight import Prompt
from lockstep.reference.scheduling.sampling_options import SamplingOptions

DRAWN = SamplingOptions(0.9, top_p=0.95)
LONGEST, MOST = 96, 64  # tokens of a prompt, and of an answer
ROUNDING = 1e-4  # of what decides: a difference of logits over their spread, or of probabilities
GROWTH = 1.1  # what memory may be at the end, of what it was at the start
SHORTEST_S = 60.0  # less is too short to say that memory is flat
BAD = 16  # one prompt of so many has an id beyond the vocabulary
WARM = 0.1  # the part of the time after which memory is looked at first, and then again


@dataclass
class Soaked:
    """What was counted, and the memory of the process in MB."""

    answers: int = 0
    tokens: int = 0
    equal: int = 0
    within_rounding: int = 0
    refused: int = 0
    wrong: list[int] = field(default_factory=list)
    lost: int = 0
    seconds: float = 0.0
    memory_start: float = 0.0
    memory_end: float = 0.0
    memory_peak: float = 0.0
    tenths: list[float] = field(default_factory=list)  # the memory after each tenth of the time

    def note_tenth(self, tenth: float) -> None:
        """Note the memory once for each tenth, of so many seconds, that is newly over."""
        while len(self.tenths) < 10 and self.seconds >= tenth * (len(self.tenths) + 1):
            self.tenths.append(self.memory_end)
            self.memory_start = self.tenths[0]

    @property
    def right(self) -> bool:
        """Whether no answer is wrong, mixed up or lost, and memory is not known to have grown."""
        return bool(self.answers) and not self.wrong and not self.lost and self.flat is not False

    @property
    def flat(self) -> bool | None:
        """Whether memory did not grow; None of a run that is too short to say so."""
        if self.seconds < SHORTEST_S:
            return None
        return self.memory_end <= GROWTH * self.memory_start


class Soak:
    """A model, and the prompts that it is given: number n is the same in every run of a seed."""

    def __init__(self, model: Any, *, slots: int, seed: int):
        self.model, self.slots, self.seed = model, slots, seed
        self.sampling = decoding(model, "sampling")
        self.single = decoding(model, "autoregressive").generate
        self.together = decoding(model, "continuous").generate

    def prompt(self, number: int) -> Prompt:
        """Return a prompt of random ids, a random end, and a chooser of its own."""
        rng = np.random.default_rng((self.seed, number))
        tokens = rng.integers(0, self.model.config.vocab_size, rng.integers(1, LONGEST)).tolist()
        stop = rng.integers(0, self.model.config.vocab_size, 4).tolist()
        choose = self.sampling.greedy
        if bad(number):
            tokens.append(self.model.config.vocab_size)
        if number % 2:
            choose = self.sampling.Sampler(DRAWN, seeded(number), tokens)
        return Prompt(tokens, int(rng.integers(1, MOST)), frozenset(stop), choose)

    def run(self, seconds: float, tell: Callable[[Soaked], None] = lambda found: None) -> Soaked:
        """Take prompts for so many seconds, one for each slot at least, and finish them all."""
        found, begin = Soaked(), time.monotonic()
        texts: dict[int, list[int]] = {}
        coming = self.coming(begin + seconds)
        for one in self.together(self.model, coming, slots=self.slots):
            made = texts.setdefault(one.text, [])
            made += [] if one.token is None else [one.token]
            if not one.last:
                continue
            del texts[one.text]
            if bad(one.text):
                self.judge_bad(one.text, made, one.error, found)
            else:
                self.judge(one.text, made, found)
            found.seconds = time.monotonic() - begin
            found.memory_end = resident()
            found.note_tenth(WARM * seconds)
            tell(found)
        found.lost = self.begun - found.answers
        found.memory_peak = max(peak(), found.memory_start, found.memory_end)
        return found

    def coming(self, end: float) -> Iterator[Prompt]:
        self.begun = 0
        while self.begun < self.slots or time.monotonic() < end:
            self.begun += 1
            yield self.prompt(self.begun - 1)

    def judge_bad(
        self, number: int, made: list[int], error: InputError | None, found: Soaked
    ) -> None:
        """A bad prompt has no answer, and an error that names its id."""
        found.answers += 1
        said = f"token id {self.model.config.vocab_size}," in str(error)
        if said and not made:
            found.refused += 1
        else:
            found.wrong.append(number)

    def judge(self, number: int, made: list[int], found: Soaked) -> None:
        """Hold an answer against the single run of its prompt."""
        prompt = self.prompt(number)
        expected = list(
            self.single(
                self.model,
                prompt.tokens,
                max_tokens=prompt.max_tokens,
                stop=prompt.stop,
                choose=prompt.choose,
            )
        )
        found.answers += 1
        found.tokens += len(made)
        if made == expected:
            found.equal += 1
        elif self.rounding_decides(number, made, expected):
            found.within_rounding += 1
        else:
            found.wrong.append(number)

    def rounding_decides(self, number: int, made: list[int], expected: list[int]) -> bool:
        """Say whether the first token that differs hangs on the last bits of its logits."""
        pairs = enumerate(zip(made, expected, strict=False))
        place = next((at for at, (one, other) in pairs if one != other), None)
        if place is None:
            return False
        prompt = self.prompt(number)
        text = [*prompt.tokens, *expected[:place]]
        logits = self.model.forward([text], last_only=True)
        host = np.asarray if self.model.runs_on == "reference" else self.model.backend.host
        row = np.asarray(host(logits)[0, 0], np.float64)
        if not number % 2:
            return abs(row[made[place]] - row[expected[place]]) < ROUNDING * row.std()
        numbers = seeded(number)
        uniform = [next(numbers) for _ in range(place + 1)][-1]
        sums = np.cumsum(self.sampling.probabilities(row, DRAWN, text))
        return near(sums, made[place], uniform) and near(sums, expected[place], uniform)


def near(sums: np.ndarray, token: int, uniform: float) -> bool:
    """Say whether a number falls to a token, or by rounding might; a share of 0 gets no number."""
    low, high = sums[token - 1] if token else 0.0, sums[token]
    return bool(low < high and low - ROUNDING < uniform < high + ROUNDING)


def bad(number: int) -> bool:
    return number % BAD == BAD - 1


def resident() -> float:
    """Return how much memory the process has now, in MB; where no file tells, the most it had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak()
    return pages * resource.getpagesize() / 1e6


def peak() -> float:
    """Return the most memory that the process has had, in MB."""
    return peak_bytes() / 1e6


def report(found: Soaked) -> str:
    """Return what was found, for a person."""
    rate = found.tokens / found.seconds if found.seconds else 0.0
    return "\n".join(
        [
            f"{'RIGHT' if found.right else 'WRONG'}  {found.answers} answers of {found.tokens} "
            f"tokens in {found.seconds:.0f} s, their single runs included: {rate:.0f} a second",
            f"equal to the single run  {found.equal}",
            f"other by rounding        {found.within_rounding}",
            f"bad, and refused alone   {found.refused}",
            f"wrong                    {len(found.wrong)}{first(found.wrong)}",
            f"lost                     {found.lost}",
            f"memory, each tenth       {' '.join(f'{one:.0f}' for one in found.tenths)}",
            f"memory                   {found.memory_start:.0f} MB at the start, "
            f"{found.memory_end:.0f} at the end, {found.memory_peak:.0f} at most"
            f"{growth(found.flat)}",
        ]
    )


def growth(flat: bool | None) -> str:
    return {None: "; too short a run to call it flat", True: ", flat", False: ", it grew"}[flat]


def first(wrong: list[int]) -> str:
    return f", the first is prompt {wrong[0]}" if wrong else ""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 0 if all is right, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.parity.bench.soak", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--backend", choices=("reference", "mlx", "cpu", "fast"), default="fast")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N")
    parser.add_argument("--slots", type=int, default=32, metavar="N", help="texts in flight")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    soak = Soak(loaded(options.model, options.backend), slots=options.slots, seed=options.seed)
    found = soak.run(60 * options.minutes, Telling())
    print(report(found))
    if options.json:
        text = json.dumps(asdict(found) | {"right": found.right, "flat": found.flat}, indent=2)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0 if found.right else 1


class Telling:
    """Says every half minute how it goes, on standard error."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, found: Soaked) -> None:
        if time.monotonic() - self.last > 30:
            self.last = time.monotonic()
            wrong = len(found.wrong)
            print(f"{found.seconds:.0f} s: {found.answers} answers, {wrong} wrong", file=sys.stderr)


def loaded(path: str, backend: str) -> Any:
    if backend == "reference":
        from lockstep.reference.model import load

        return load(path)
    from lockstep.fast.model import load as load_fast

    return load_fast(path, backend=backend)


if __name__ == "__main__":
    sys.exit(main())
