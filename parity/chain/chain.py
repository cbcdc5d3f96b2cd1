"""Judge what is around the model: its ids before, its choices behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.parity.chain.choosing import judge_choices
from lockstep.parity.chain.said import said_by
from lockstep.parity.chain.tokenizing import judge_tokens
from lockstep.parity.dump import Dump
from lockstep.parity.explaining.diagnosis import IDS, Diagnosis
from lockstep.parity.explaining.steps import steps_in
from lockstep.parity.faults.around import mistakes
from lockstep.parity.faults.mistake import Mistake
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model

NOTHING = (
    "says nothing that can be judged: it needs tensors, or prompt and tokens, or tokens and decoded"
)


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
        known: Iterable[Any] | None = None,
    ):
        self.model, self.dump = model, dump
        given = None if tokens is None else prompt_in(dump, [*tokens])
        self.said = said_by(dump, tokens=given, prompt=prompt, chat=chat)
        every = mistakes() if known is None else known
        self.known = tuple(one for one in every if isinstance(one, Mistake))

    def before(self, result: Diagnosis) -> None:
        """Judge the ids of the prompt."""
        judge_tokens(self.model, self.said, self.known, result)

    def behind(self, result: Diagnosis) -> None:
        """Judge the choices, and say what was judged of the model."""
        if self.dump.shapes:
            named = [tap for one in result.faults for tap in one.taps]
            wrong = {*named, *(one.tap for one in result.unexplained)} - {*IDS}
            result.stage("model", result.compared, right=not wrong)
        judge_choices(self.model, self.dump, self.said, self.known, result)
        if not result.stages:
            raise InputError(self.dump.path, next(iter(result.conventions), NOTHING))


def prompt_in(dump: Dump, tokens: list[int]) -> list[int]:
    """Return the prompt's ids of some that may hold behind them what steps were fed."""
    later = 0 if dump.decoded or dump.batch is not None else steps_in(dump)
    return tokens[: len(tokens) - later] if later < len(tokens) else tokens
