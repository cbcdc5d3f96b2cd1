"""Any program that speaks the pipe protocol. It may hang, die, or write anything at all."""

import shlex

import numpy as np

from lockstep.parity.conformance.backends import Broken, Failed, Unsupported
from lockstep.parity.conformance.case import Case
from lockstep.parity.conformance.pipe import Pipe, PipeError
from lockstep.parity.conformance.protocol import answer, hello, request
from lockstep.reference.checkpoint.errors import InputError, clip_end, escape, show


class Program:
    """A worker that is started once, and again after it broke.

    Raises: InputError if it cannot be started, or does not say hello.
    """

    def __init__(self, command: str, *, seconds: float):
        self.name, self.seconds, self.calls = command, seconds, 0
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise InputError("--exec", f"{show(command)}: {error}") from None
        if not self.words:
            raise InputError("--exec", "names no program")
        self.pipe: Pipe | None = None
        try:
            self.start()
        except (PipeError, ValueError) as error:
            self.close()
            raise InputError("--exec", line(error), clip_end(escape(command), 80)) from None

    def start(self) -> Pipe:
        self.pipe = Pipe(self.words)
        kind, _, _ = answer(self.pipe.ask(hello(), self.seconds), "0")
        if kind != "hello":
            raise ValueError(f"answered hello with {show(kind, 40)}")
        return self.pipe

    def __call__(self, case: Case) -> np.ndarray:
        self.calls += 1
        try:
            pipe = self.pipe or self.start()
            kind, tensors, metadata = answer(
                pipe.ask(request(case, self.calls), self.seconds), str(self.calls)
            )
            if kind == "result" and set(tensors) != {"out"}:
                raise ValueError(f"the tensors {show([*tensors], 40)}, but should be 'out' alone")
        except (PipeError, ValueError) as error:
            self.close()
            raise Broken(line(error)) from None
        if kind == "result":
            return tensors["out"]
        if kind == "not implemented":
            raise Unsupported(case.op)
        if kind == "error":
            raise Failed(f"said: {show(metadata.get('message', ''), 160)}")
        self.close()
        raise Broken(f"answered with the kind {show(kind, 40)}")

    def close(self) -> None:
        """End the program, and whatever it started."""
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


def line(error: Exception) -> str:
    return clip_end(escape(str(error)), 300)
