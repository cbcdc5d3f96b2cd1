"""Engines in processes of their own, loaded together, that run one at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from lockstep.parity.bench.choice import GGUF_READERS, OURS, Choice, check_readable, dtype_of
from lockstep.parity.bench.gguf_copy import STORED, Inexact, as_gguf
from lockstep.parity.bench.timing import Round
from lockstep.parity.bench.unpacked_copy import as_unpacked
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError, show

COMMAND = (sys.executable, "-m", "lockstep.parity.bench.worker")


class Worker:
    """An engine whose process waits for its turn. `weights` says what it was given to run."""

    def __init__(self, choice: Choice, dtype: str):
        self.choice, self.dtype, self.weights = choice, dtype, STORED
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self.process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said
        )

    def ask(self, do: str, **request: Any) -> Any:
        """Send a request and wait for its answer.

        Raises: InputError if it is refused, or the process has ended.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise InputError(self.choice.label, self.ended())
        answer = json.loads(line)
        if "refused" in answer:
            raise InputError(*answer["refused"])
        return answer["done"]

    def ended(self) -> str:
        """Return how the process ended, with the last line that it wrote."""
        code = self.process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"its process {how}" + (f": {show(last, 120)}" if last else "")

    def load(self, checkpoint: Checkpoint, ignore_config: Collection[str]) -> None:
        """Load a checkpoint, or a copy in the format that the engine reads."""
        check_readable(self.choice, checkpoint)
        self.ask("start", name=self.choice.name)
        with (
            refusing(self.choice.name, checkpoint.path.name),
            self.given(checkpoint.path, ignore_config) as (path, self.weights),
        ):
            self.ask(
                "load", path=str(path), form=self.dtype, shown=checkpoint.path.name,
                ignore_config=[*ignore_config],
            )  # fmt: skip

    def given(
        self, path: Path, ignore_config: Collection[str]
    ) -> AbstractContextManager[tuple[Path, str]]:
        """Return what the engine is given to read while it loads, and what is said of that."""
        if self.choice.name in GGUF_READERS:
            return as_gguf(path, self.choice.form, ignore_config=ignore_config)
        if self.choice.name == "transformers":
            return as_unpacked(path, self.dtype, ignore_config=ignore_config)
        return nullcontext((path, STORED))

    def run(self, prompt: list[int], decode: int) -> Round:
        return Round(**self.ask("run", prompt=prompt, decode=decode))

    def limits(self, tokens: int) -> dict[str, float] | None:
        return self.ask("limits", tokens=tokens)

    def close(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.said):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was never read goes nowhere
                    pipe.close()


@contextmanager
def refusing(name: str, shown: str) -> Iterator[None]:
    """Make an InputError of what goes wrong when a copy is written for an engine."""
    try:
        yield
    except ImportError as error:
        raise InputError(name, f"is not installed ({error.name})") from None
    except Inexact as error:
        raise InputError(name, f"reads GGUF, and {shown} has no copy: {error}") from None
    except OSError as error:
        raise InputError(name, f"cannot be given {shown}: {error}") from None


class Workers:
    """The engines that are left of those asked for, and a line for each that was left out."""

    def __init__(self) -> None:
        self.engines: dict[str, Worker] = {}
        self.left_out: list[str] = []

    def add(
        self, choice: Choice, checkpoint: Checkpoint, *, dtype: str | None,
        ignore_config: Collection[str], ours: bool,
    ) -> None:  # fmt: skip
        """Load a checkpoint on an engine. One of ours that fails raises; a peer is left out."""
        worker = Worker(choice, dtype_of(choice, checkpoint, dtype))
        try:
            worker.load(checkpoint, ignore_config)
            self.engines[choice.label] = worker
        except InputError as error:
            worker.close()
            if ours:
                raise
            self.left_out.append(str(error))
        except BaseException:
            worker.close()
            raise

    def leave_out(self, label: str, error: InputError) -> None:
        """Go on without a peer that failed in its turn. One of ours raises its error."""
        if self.engines[label].choice.name in OURS:
            raise error
        self.engines.pop(label).close()
        self.left_out.append(str(error))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *problem: object) -> None:
        for worker in self.engines.values():
            worker.close()
