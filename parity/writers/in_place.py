"""A writer that knows about how long its header will be: then nothing is copied at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.parity.writers.lockstep_dump import TraceWriter
from lockstep.parity.writers.straight import Straight
from lockstep.reference.checkpoint.safetensors_header import HEADER_LIMIT


class InPlaceWriter(TraceWriter):
    """Keeps `room` bytes free before the tensors. A header that finds room there is written there,
    with spaces behind it, as the format allows; a longer one makes a copy, as ever. The spaces
    count as header, so there are never more than readers take. Behind `cached` bytes of tensors
    all more go straight to the disk: a short trace is soon read, and may stay in the cache. While
    it `keeps`, what was collected stays where it is when it cannot be put in place."""

    keeps = False
    body: Any

    def __init__(self, path: Path, room: int, cached: int | None = None, /, **about: Any):
        super().__init__(path, **about)
        self.start = min(room, HEADER_LIMIT) // 8 * 8
        self.body.seek(self.start)
        self.cached = cached

    def add(self, name: str, values: Any, *, shape: Sequence[int], dtype: str = "F32") -> None:
        straight = isinstance(self.body, Straight)
        if not straight and self.cached is not None and self.size >= self.cached:
            self.body = Straight(self.body)
        super().add(name, values, shape=shape, dtype=dtype)

    def close(self) -> None:
        try:
            if isinstance(self.body, Straight):
                self.body = self.body.finish()
            header = json.dumps(self.header, ensure_ascii=True).encode()
            free = self.start - 8 - len(header)
            if free < 0:
                return super().close()
            self.body.seek(0)
            self.body.write((self.start - 8).to_bytes(8, "little") + header + b" " * free)
            self.body.flush()
            os.fsync(self.body.fileno())
            self.body.close()
            self.bodies.replace(self.path)
        finally:
            self.discard()

    def discard(self) -> None:
        if not self.keeps:
            return super().discard()
        with suppress(OSError):  # a full disk: what is buffered is not wanted any more
            self.body.close()
        self.whole.unlink(missing_ok=True)
