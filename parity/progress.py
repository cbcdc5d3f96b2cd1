"""Progress on standard error: only on a terminal, and only after a second."""

import os
import sys
import time

from lockstep.reference.checkpoint.errors import escape


class Progress:
    """Shows `done/total` and what is being worked on in one line that is wiped at the end."""

    def __init__(self, total: int, *, after: float = 1.0):
        self.total, self.done = total, 0
        self.begin = time.monotonic() + after
        self.visible = on_terminal()
        self.shown = False

    def __call__(self, what: str) -> None:
        self.done += 1
        if not self.visible or time.monotonic() < self.begin:
            return
        done = min(self.done, self.total)
        filled = 24 * done // max(self.total, 1)
        bar = "█" * filled + "░" * (24 - filled)
        sys.stderr.write(f"\r\x1b[2K{bar} {done}/{self.total} {escape(what[:50])}")
        sys.stderr.flush()
        self.shown = True

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *problem: object) -> None:
        self.visible = False
        if self.shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def on_terminal() -> bool:
    """Say whether standard error is a terminal that can wipe a line."""
    return (
        sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    )
