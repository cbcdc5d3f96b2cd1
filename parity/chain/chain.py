"""Judge what is around the model: its ids before, its choices behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstep.parity.chain.choosing import judge_choices
from lockstep.parity.chain.said import PLACE, said_by
from lockstep.parity.chain.tokenizing import judge_tokens
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.fed import steps_in
from lockstep.parity.explaining.said.diagnosis import IDS, Diagnosis
from lockstep.parity.faults.around import mistakes
from lockstep.parity.faults.mistake import Mistake
from lockstep.parity.naming.mapping import read_map
from lockstep.parity.naming.names import parted
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model

NOTHING = (
    "says nothing that can be judged: it needs tensors, or prompt and tokens, or tokens and decoded"
)

LARGEST = 1 << 31  # ids from here on no tokenizer has


class Chain:
    """The steps around a model, of one run of a port."""

    def __init__(
        self,
        model: Model,
        dump: Dump,
        *,
        tokens: Sequence[int] | None = None,
        prompt: str | None = None,
        chat: bool = False,
        names: str | Path | None = None,
        known: Iterable[Any] | None = None,
    ):
        self.model, self.dump = model, dump
        self.mapped = {} if names is None else read_map(names).mapped(dump.shapes)
        given = None if tokens is None else prompt_in(dump, [*tokens])
        self.said = said_by(dump, tokens=given, prompt=prompt, chat=chat)
        every = mistakes() if known is None else known
        self.check()
        self.known = tuple(one for one in every if isinstance(one, Mistake))

    def before(self, result: Diagnosis) -> None:
        """Judge the ids of the prompt."""
        with self.noting("the token ids are not judged", result):
            judge_tokens(self.model, self.said, self.known, result)

    def behind(self, result: Diagnosis) -> None:
        """Judge the choices, and say what was judged of the model."""
        if self.dump.shapes:
            named = [tap for one in result.faults for tap in one.taps]
            wrong = {*named, *(one.tap for one in result.unexplained)} - {*IDS}
            result.stage("model", result.compared, right=not wrong)
        with self.noting("the choices are not judged", result):
            judge_choices(self.model, self.dump, self.said, self.known, result, self.mapped)
        if not result.stages:
            raise InputError(self.dump.path, next(iter(result.conventions), NOTHING))

    @contextmanager
    def noting(self, what: str, result: Diagnosis) -> Iterator[None]:
        """Let what cannot be judged be a note where tensors can be: their diagnosis stands."""
        try:
            yield
        except InputError as error:
            if not self.dump.shapes:
                raise
            result.conventions.append(f"{what}: {error}")

    def check(self) -> None:
        """Raise InputError for an id that no tokenizer of this model has."""
        size, said = self.model.config.vocab_size, self.said
        answer = "generated" if "generated" in self.dump.about else "decoded"
        lists = {"decoded": said.fed or [], answer: said.answer}
        for key, ids in lists.items():
            if ids and max(ids) >= size:
                what = f"token id {max(ids)} of {key}, but should be 0..{size - 1}"
                raise InputError(self.dump.path, what, PLACE)
        if max(said.tokens or [0]) >= LARGEST:
            what = f"token id {max(said.tokens or [0])} of tokens, but should be below {LARGEST}"
            raise InputError(self.dump.path, what, PLACE)


def prompt_in(dump: Dump, tokens: list[int]) -> list[int]:
    """Return the prompt's ids of some that may hold behind them what steps were fed.

    Raises: InputError if the prompt's tensors are of another number of tokens.
    """
    later = 0 if dump.decoded or dump.batch is not None else steps_in(dump)
    if not later:
        return tokens
    length = rows_of_prompt(dump)
    if length and len(tokens) != length + later:
        what = f"--tokens has {len(tokens)} ids, but should have {length + later}: the prompt's "
        raise InputError(dump.path, f"{what}{length}, and what each of {later} steps was fed")
    return tokens[: len(tokens) - later] if later < len(tokens) else tokens


def rows_of_prompt(dump: Dump) -> int:
    """Return how many tokens a prompt has by its tensors, 0 if that does not show.

    It shows in what is of one token in step 1, and of more in the prompt, and else the same.
    """
    if "positions" in dump.about:  # of some tokens
        return 0
    found = [0]
    for name, shape in dump.shapes.items():
        step, path = parted(name)
        later = dump.shapes.get(f"step.1/{path}", ())
        if step or len(later) != len(shape):
            continue
        pairs = [(a, b) for a, b in zip(shape, later, strict=True) if a != b]
        if len(pairs) == 1 and pairs[0][1] == 1:
            found.append(pairs[0][0])
    return max(found)
