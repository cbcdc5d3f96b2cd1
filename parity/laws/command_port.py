"""A command that is run once for each prompt: a line of token ids in, logits out."""

import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np

from lockstep.parity.conformance.blob import decode
from lockstep.parity.laws.port import shaped
from lockstep.reference.checkpoint.errors import InputError, clip_end, escape, show

LARGEST = 1 << 30
CHUNK = 1 << 20
ONE = "is a command, which is given one sequence at a time"


class CommandPort:
    """Raises: InputError for a command that is no list of words, hangs, fails, or says nothing."""

    batches = cached = padded = ONE

    def __init__(self, command: str, *, seconds: float):
        self.name, self.seconds = clip_end(escape(command), 80), seconds
        self.vocabulary: int | None = None
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise InputError(self.name, f"is no command: {error}") from None
        if not self.words:
            raise InputError("laws", "an empty command")

    def logits(
        self, tokens: np.ndarray, *, cache: Any = None, lengths: np.ndarray | None = None
    ) -> np.ndarray:
        line = ",".join(map(str, tokens[0].tolist())) + "\n"
        return shaped(self.parsed(self.run(line.encode()), tokens.shape[1]), tokens, self.name)

    def make_cache(self) -> Any:
        raise NotImplementedError(ONE)

    def parsed(self, data: bytes, length: int) -> np.ndarray:
        """Return logits from a safetensors file, or from float32 numbers row by row."""
        if looks_like_safetensors(data):
            tensors, _ = decode(data, self.name)
            if "logits" not in tensors:
                raise InputError(self.name, f"wrote no tensor 'logits' but {show([*tensors], 40)}")
            return tensors["logits"]
        if not data or len(data) % (4 * length):
            rows = f"{len(data)} bytes, but should be float32 logits of {length} tokens"
            raise InputError(self.name, f"wrote {rows}, or a safetensors file")
        return np.frombuffer(data, "<f4").reshape(length, -1)

    def run(self, line: bytes) -> bytes:
        with tempfile.TemporaryFile() as words:
            try:
                process = subprocess.Popen(
                    self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words,
                    start_new_session=True, bufsize=0,
                )  # fmt: skip
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                where = None if ":" in self.name else "a Python callable is MODULE:NAME"
                raise InputError(self.name, f"cannot be started: {reason}", where) from None
            try:
                data = self.output(process, line)
                code = process.wait(max(self.seconds, 1))
            except subprocess.TimeoutExpired:
                raise InputError(self.name, f"did not end within {self.seconds:g} s") from None
            finally:
                end(process)
            if code:
                raise InputError(self.name, f"ended with exit code {code}{last_words(words)}")
            return data

    def output(self, process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
        """Return all that the command writes. Raises: InputError if it is too much or too late."""
        pipes = process.stdin, process.stdout
        into, out = (stream for stream in pipes if stream is not None)
        with suppress(BrokenPipeError):  # one that does not read may still answer
            into.write(line)
            into.close()
        deadline, parts, size = time.monotonic() + self.seconds, [], 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise InputError(self.name, f"did not end within {self.seconds:g} s")
            chunk = os.read(out.fileno(), CHUNK)
            size += len(chunk)
            if size > LARGEST:
                raise InputError(self.name, f"wrote more than {LARGEST} bytes for one prompt")
            if not chunk:
                return b"".join(parts)
            parts.append(chunk)


def looks_like_safetensors(data: bytes) -> bool:
    length = int.from_bytes(data[:8], "little")
    return data[8:9] == b"{" and 8 + length <= len(data)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End the command with all that it started, and close its pipes."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def last_words(stream: BinaryIO) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - 2000, 0))
    lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    return f"; its last words: {show(lines[-1], 120)}" if lines else ""
