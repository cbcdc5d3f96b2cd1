"""What a reader should know before trusting the verdict of a comparison."""

from lockstep.parity.cli.output import counted
from lockstep.parity.diffing.plain import rounding
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.result import Result
from lockstep.parity.judging.same_tokens import first_apart
from lockstep.reference.checkpoint.errors import InputError

SAME = "every compared value is the same on both sides, to the bit"
ALONE = "no tap is in both: right is held against the model alone"
ZEROS = "zero everywhere on both sides, which shows nothing: {count}"
FED = "the sides were fed other tokens after the prompt, from step {step} on"
DOUBT = "left is not what the model gives, in {count} from {name} on: the verdict is of right"
UNTOLD = "{side} says no tokens: that both sides saw one prompt is taken on trust"


def cautions(result: Result, left: Dump, right: Dump) -> list[str]:
    """Say what a reader should know before trusting the verdict.

    Raises: InputError if nothing was compared, or nothing but zeros.
    """
    judged = [tap for tap in result.taps if tap.status != "not judged"]
    if not judged:
        raise InputError(right.path, f"nothing was compared: no tap is in {left.path} too")
    zeros = [tap for tap in judged if tap.max_abs == 0 and tap.rms_rel is None]
    if len(zeros) == len(judged):
        raise InputError(right.path, f"nothing was compared: it and {left.path} hold only zeros")
    parted = first_apart(left.decoded, right.decoded)
    untold = [side for side, dump in (("left", left), ("right", right))
              if dump.tokens is None and dump.batch is None]  # fmt: skip
    alone = set(result.unmatched)
    both = [tap for tap in judged if tap.name not in alone]
    same = both and all(tap.max_abs == 0 for tap in both)
    return [
        *([] if both else [ALONE]),
        *([ZEROS.format(count=counted(zeros, "tap"))] if zeros else []),
        *([SAME] if same else []),
        *([FED.format(step=parted + 1)] if parted is not None else []),
        *(UNTOLD.format(side=side) for side in untold),
    ]


def doubts(result: Result, dtype: str) -> list[str]:
    """Say where `left` must be wrong: `right` is what the model gives, and `left` is far from it.

    `dtype` is the coarser one of the two.
    """
    limit = rounding(dtype)
    right = [tap for tap in result.taps if tap.status == "ok"]
    agreed = [tap for tap in right if close(tap.inherited_error, limit)]
    wrong = [tap.name for tap in agreed if tap.max_abs != 0 and not close(tap.rms_rel, limit)]
    return [DOUBT.format(count=counted(wrong, "tap"), name=wrong[0])] if wrong else []


def close(error: float | None, limit: float) -> bool:
    return error is not None and error <= limit
