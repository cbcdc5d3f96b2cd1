"""One engine in a process of its own, which runs when it is told to: its memory is its own too.

    python -m lockstep.parity.bench.worker

A line of standard input is a request in JSON, and a line of standard output its answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.parity.bench.memory import peak_bytes
from lockstep.reference.checkpoint.errors import InputError

REST = 0.15  # seconds for which threads of a BLAS may go on waiting busily, when all is done


class Host:
    """Holds the engine between requests. Each method answers one kind of request."""

    def __init__(self) -> None:
        self.name, self.work = "", None
        self.engine: Any = None
        self.buffers: list[Any] = []

    def start(self, name: str) -> None:
        """Import what the engine needs, before anything is converted for it."""
        from lockstep.parity.bench.engines import check_installed

        self.name = name
        check_installed(name)

    def load(self, path: str, form: str, shown: str, ignore_config: list[str]) -> None:
        from lockstep.parity.bench.engines import loaded

        self.engine = loaded(self.name, Path(path), form, shown=shown, ignore_config=ignore_config)

    def run(self, prompt: list[int], decode: int) -> dict[str, Any]:
        """Time a prompt and `decode` tokens after it."""
        from lockstep.parity.bench.timing import timed

        return asdict(timed(self.engine, prompt, decode)) | {"peak_bytes": peak_bytes()}

    def limits(self, tokens: int) -> dict[str, float] | None:
        """Measure what the machine allows; None for a peer, and where a GPU has the weights."""
        from lockstep.parity.bench.choice import OURS
        from lockstep.parity.bench.limits import limits
        from lockstep.parity.bench.work import kept_bytes

        if self.name not in OURS or on_gpu(self.engine):
            return None
        if self.work is None:
            self.count()
        assert self.work is not None
        kept = kept_bytes(self.engine.model, tokens)
        found = asdict(limits(self.work, kept, self.buffers, tokens))
        found["operations"] = self.work.operations(tokens)
        time.sleep(REST)
        return found

    def count(self) -> None:
        from lockstep.parity.bench.work import buffers, work_of

        model = self.engine.model
        weights = getattr(model, "weights", None)
        if weights is None:  # the reference reads them from the disk each time
            weights = {name: model.checkpoint.tensor(name) for name in model.checkpoint.names}
        self.work, self.buffers = work_of(model.checkpoint, weights), buffers(weights)


def on_gpu(engine: Any) -> bool:
    backend = getattr(engine.model, "backend", None)
    return backend is not None and backend.name == "mlx" and backend.has_gpu()


def answer(host: Host, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked; a refusal is an answer too."""
    method: Callable[..., Any] = getattr(host, request.pop("do"))
    try:
        return {"done": method(**request)}
    except InputError as error:
        return {"refused": [error.path, error.what, error.where]}


def main() -> None:
    """Answer requests until there are no more. What libraries print does not mix with answers."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    host = Host()
    for line in sys.stdin:
        answers.write(json.dumps(answer(host, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
