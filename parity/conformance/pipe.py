"""A program behind two pipes, with a limit on the time and the bytes of every answer."""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from lockstep.reference.checkpoint.errors import show

LENGTH_BYTES = 8
LARGEST = 1 << 26  # of one answer: far more than any example asks for
CHUNK = 1 << 16
KEPT = 2000  # bytes of what it last said on standard error


class PipeError(Exception):
    """The program hung, died, or wrote what is no message. One line."""


class Pipe:
    """A running program. Raises: PipeError if it cannot be started."""

    def __init__(self, words: Sequence[str]):
        try:
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PipeError(f"cannot be started: {reason}") from None
        pipes = self.process.stdin, self.process.stdout, self.process.stderr
        self.into, self.out, self.err = (stream.fileno() for stream in pipes if stream)
        self.tail = b""
        for end in (self.into, self.out):
            os.set_blocking(end, False)
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self) -> None:
        """Keep the end of standard error, so that a talkative program never blocks."""
        with suppress(OSError):
            while chunk := os.read(self.err, CHUNK):
                self.tail = (self.tail + chunk)[-KEPT:]

    def ask(self, blob: bytes, seconds: float) -> bytes:
        """Send a message and return the answer to it. Raises: PipeError."""
        sending = memoryview(len(blob).to_bytes(LENGTH_BYTES, "little") + blob)
        deadline, got = time.monotonic() + seconds, b""
        while True:
            wanted = self.wanted(got)
            if wanted is not None and len(got) >= wanted:
                return whole(got, wanted, early=bool(sending))
            reads, writes = self.ready([self.into] if sending else [], deadline, seconds)
            if writes:
                sending = sending[self.write(sending, len(got)) :]
            if reads:
                got += self.read(len(got))

    def ready(self, writing: list[int], deadline: float, seconds: float) -> tuple[bool, bool]:
        left = deadline - time.monotonic()
        reads, writes, _ = select.select([self.out], writing, [], max(left, 0))
        if not reads and not writes:
            raise PipeError(f"no answer within {seconds:g} s{self.last_words()}")
        if left <= 0:
            raise PipeError(f"no whole answer within {seconds:g} s{self.last_words()}")
        return bool(reads), bool(writes)

    def write(self, data: memoryview, had: int) -> int:
        try:
            return os.write(self.into, data[:CHUNK])
        except BlockingIOError:
            return 0
        except OSError:
            raise PipeError(self.ended(had, unread=True)) from None

    def read(self, had: int) -> bytes:
        try:
            chunk = os.read(self.out, CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            raise PipeError(self.ended(had))
        return chunk

    def wanted(self, got: bytes) -> int | None:
        """Return how many bytes the answer has, None before its length is there."""
        if len(got) < LENGTH_BYTES:
            return None
        length = int.from_bytes(got[:LENGTH_BYTES], "little")
        if length > LARGEST:
            seen = show(got[:40].decode("latin-1"), 40)
            what = "which is no message: does it print to standard output?"
            raise PipeError(f"wrote {seen}, {what}")
        return LENGTH_BYTES + length

    def ended(self, had: int, *, unread: bool = False) -> str:
        """Say how the program ended; one that only closed its pipe is ended here.

        Which of its pipes is seen to be closed first, when it ended, is chance, and is not told.
        """
        answer = f"after {had} bytes of an answer"
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            when = "before it had read the call" if unread else answer
            return f"closed its pipe {when}{self.last_words()}"
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"ended with {how} {answer}{self.last_words()}"

    def last_words(self) -> str:
        self.listener.join(0.2)
        lines = self.tail.decode("utf-8", "replace").strip().splitlines()
        return f"; its last words: {show(lines[-1], 120)}" if lines else ""

    def close(self) -> None:
        """End the program with all that it started, and close the pipes."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.listener.join(1)
        if self.process.stderr is not None and not self.listener.is_alive():
            self.process.stderr.close()


def whole(got: bytes, wanted: int, *, early: bool) -> bytes:
    """Return the message that was got. Raises: PipeError for one too early, or with more behind."""
    if early:
        raise PipeError(f"wrote {len(got)} bytes before it had read the whole call")
    if len(got) > wanted:
        more = show(got[wanted : wanted + 40].decode("latin-1"), 40)
        raise PipeError(f"wrote {more} after an answer: does it print to standard output?")
    return got[LENGTH_BYTES:]
