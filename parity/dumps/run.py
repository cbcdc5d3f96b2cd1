"""A prefill and the greedy steps behind it, whose taps go to a file as they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.parity.dumps.steps import Chosen, Steps
from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.excerpts.whole_run import WholeRun
from lockstep.parity.judging.padding import Padding
from lockstep.parity.progress import Progress
from lockstep.parity.replaying.cached import caches_behind

Trace = Callable[[str, Any], None]


@dataclass(frozen=True)
class Run:
    """A prefill and the greedy steps behind it; of the prompt an excerpt is written, if there is.

    A single prompt is no batch of one: a batch says the lengths of its prompts.
    """

    model: Any
    cache: Any
    padding: Padding
    excerpt: Excerpt | None
    decode: int
    batch: bool

    @property
    def stages(self) -> int:
        return (self.decode + 1) * (self.model.config.num_hidden_layers + 2)

    def write(
        self,
        steps: Steps,
        file: Any,
        globs: Sequence[str] | None,
        fed: np.ndarray,
        progress: Progress,
    ) -> list[list[int]]:
        """Write the taps of every step; return the ids that each row was fed after its prompt."""
        decoded: list[list[int]] = [[] for _ in self.padding.lengths]
        for step in range(self.decode + 1):
            file.prefix = f"step.{step}/" if step else ""
            lengths = None if step or not self.batch else self.padding.lengths
            some = None if step else self.excerpt
            steps.begin(step)
            chosen = Chosen(file, globs)
            logits = run_stages(steps, fed, self.cache, chosen, progress, lengths, some)
            file.check_header(1 if step else self.decode + 1)  # before the steps, not behind them
            if step < self.decode:
                fed = np.array(steps.fed(step, logits, self.last(step)))[:, None]
                for row, token in zip(decoded, fed[:, 0].tolist(), strict=True):
                    row.append(token)
        return decoded

    def last(self, step: int) -> Sequence[int]:
        """Return where each row's last logits are, among those that a step gives."""
        alone = step or self.excerpt
        return [-1] * len(self.padding.lengths) if alone else self.padding.last


def run_stages(
    steps: Steps,
    tokens: np.ndarray,
    cache: Any,
    chosen: Chosen,
    progress: Progress,
    lengths: Sequence[int] | None,
    excerpt: Excerpt | None,
) -> Any:
    """Run one step a stage at a time, so that a stage's taps are written before the next begins."""
    logits, placed = None, {} if lengths is None else {"lengths": lengths}
    if excerpt is None:
        run = steps.model.stages(tokens, cache=cache, trace=chosen, **placed)
    else:
        run = kept(WholeRun(steps.model, cache, excerpt).stages(tokens, **placed), chosen)
    for name, value in run:
        if chosen.caches:
            for tap, held in caches_behind(name, cache):
                chosen(tap, held)
        steps.done(name, value)
        progress(name)
        logits = value
    return logits


def kept(
    stages: Iterator[tuple[str, Any, dict[str, np.ndarray]]], write: Trace
) -> Iterator[tuple[str, Any]]:
    """Write what is kept of each stage before the next begins."""
    for name, value, taps in stages:
        for tap, some in taps.items():
            write(tap, some)
        yield name, value
