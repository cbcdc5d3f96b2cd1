"""When the parts of an answer were there."""

import time
from collections.abc import Callable


class Clock:
    """Notes when the prompt was read and when each token was made, in seconds.

    `tokenize_s` is how long it took to make ids of the prompt, if anybody knows.
    """

    def __init__(
        self, tokenize_s: float | None = None, *, now: Callable[[], float] = time.perf_counter
    ):
        self.tokenize_s, self.now = tokenize_s, now
        self.begin = now()
        self.read: float | None = None  # when the prompt had gone through the model
        self.made: list[float] = []

    def prompt_is_read(self) -> None:
        """Note it, the first time."""
        if self.read is None:
            self.read = self.now()

    def token(self) -> None:
        """Note a token. Who did not say when the prompt was read means now."""
        self.prompt_is_read()
        self.made.append(self.now())

    def timings(self, prompt: int, *, from_prompt: int = 1) -> dict[str, float | None]:
        """Return the seconds of each part, and tokens a second of prefill and of decoding.

        `prompt` is how many tokens were read, `from_prompt` how many were made by reading it: 1, or
        0 if the first took a pass of its own. The rate of decoding is that of the others.
        `first_token_s` and `total_s` count the tokenising.
        """
        before = self.tokenize_s or 0.0
        parts: dict[str, float | None] = dict.fromkeys(PARTS)
        parts["tokenize_s"] = self.tokenize_s
        if self.read is None or not self.made:
            return parts
        prefill = self.read - self.begin
        decode = self.made[-1] - (self.made[0] if from_prompt else self.read)
        return parts | {
            "prefill_s": prefill,
            "first_token_s": before + self.made[0] - self.begin,
            "decode_s": decode,
            "total_s": before + self.made[-1] - self.begin,
            "prefill_tokens_per_second": prompt / prefill if prefill else None,
            "decode_tokens_per_second": (len(self.made) - from_prompt) / decode if decode else None,
        }


PARTS = (
    "tokenize_s", "prefill_s", "first_token_s", "decode_s", "total_s",
    "prefill_tokens_per_second", "decode_tokens_per_second",
)  # fmt: skip
