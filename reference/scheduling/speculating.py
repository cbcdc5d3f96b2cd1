"""The rounds of speculative decoding: what is counted, and where the text ends. No arithmetic.

A cheap draft proposes some tokens, the model reads all of them in one forward pass, keeps those
that it agrees with and adds one of its own. Both packages go through the same rounds.
Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from lockstep.reference.scheduling.common_prefix import common_prefix

Judge = Callable[[list[int], list[int]], list[int]]
Propose = Callable[[list[int], int], list[int]]


@dataclass
class Speculated:
    """What was counted: forward passes of the model, tokens drafted, kept of these, and made."""

    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    made: int = 0


def speculate(
    text: list[int],
    *,
    propose: Propose,
    judge: Judge,
    draft_tokens: int,
    max_tokens: int,
    longest: int | None,
    stop: Collection[int],
    counts: Speculated,
) -> Iterator[int]:
    """Yield up to `max_tokens` new tokens, put behind `text` before; one of `stop` ends it.

    `propose(text, count)` returns up to `count` drafted tokens, `judge(text, drafted)` those of
    them that are kept and one more. A round never drafts what there is no room for: `max_tokens`
    is not passed, nor is the cache's room. The first round reads the prompt and drafts nothing, nor
    is there a draft beyond `longest` tokens of text, where single tokens would be read otherwise.
    """
    left = max_tokens
    first = True
    while left > 0:
        room = left - 1 if longest is None else min(left - 1, longest - len(text))
        count = max(0, min(draft_tokens, room)) if not first else 0
        drafted = propose(text, count) if count else []
        first = False
        made = judge(text, drafted)
        made = made[: next((at for at, one in enumerate(made, 1) if one in stop), len(made))]
        counts.forwards += 1
        counts.drafted += len(drafted)
        counts.accepted += common_prefix(made, drafted)
        counts.made += len(made)
        left -= len(made)
        text += made
        yield from made
        if made[-1] in stop:
            return


def agreed(drafted: Sequence[int], best: Sequence[int]) -> list[int]:
    """Return the model's own choices up to the first that is not the drafted one, it included."""
    return list(best[: common_prefix(drafted, best) + 1])
