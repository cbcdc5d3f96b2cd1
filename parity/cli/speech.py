"""Text that is printed while it is made."""

import sys

from lockstep.parity.cli.output import printable


class Speech:
    """Prints pieces as they come to a terminal, and whole lines to anything else.

    A log's reader, GitHub's runner for one, takes lines: only of a whole line can be said that it
    steers nothing.
    """

    def __init__(self, *, quiet: bool):
        self.quiet = quiet
        self.at_once = sys.stdout is not None and sys.stdout.isatty()
        self.waiting = ""

    def __call__(self, text: str) -> None:
        if self.quiet:
            return
        self.waiting += text
        ready = len(self.waiting) if self.at_once else self.waiting.rfind("\n") + 1
        self.say(ready)

    def say(self, count: int) -> None:
        if count:
            print(printable(self.waiting[:count]), end="", flush=True)
            self.waiting = self.waiting[count:]

    def __enter__(self) -> "Speech":
        return self

    def __exit__(self, kind: object, *problem: object) -> None:
        if kind is None:
            self.say(len(self.waiting))
