"""Engines in processes of their own, loaded together, that run one at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.parity.bench.choice import GGUF_READERS, Choice, check_readable, dtype_of
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
        path, name = checkpoint.path, self.choice.name
        try:
            if name in GGUF_READERS:
                copy = as_gguf(path, self.choice.form, ignore_config=ignore_config)
            elif name == "transformers":
                copy = as_unpacked(path, self.dtype, ignore_config=ignore_config)
            else:
                return self.load_from(path, checkpoint, ignore_config)
            with copy as (made, self.weights):
                self.load_from(made, checkpoint, ignore_config)
        except ImportError as error:
            raise InputError(name, f"is not installed ({error.name})") from None
        except Inexact as error:
            raise InputError(name, f"reads GGUF, and {path.name} has no copy: {error}") from None
        except OSError as error:
            raise InputError(name, f"cannot be given {path.name}: {error}") from None

    def load_from(self, path: Path, checkpoint: Checkpoint, ignored: Collection[str]) -> None:
        self.ask(
            "load", path=str(path), form=self.dtype, shown=checkpoint.path.name,
            ignore_config=[*ignored],
        )  # fmt: skip

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

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *problem: object) -> None:
        for worker in self.engines.values():
            worker.close()
