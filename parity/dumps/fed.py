"""What a dump's port was fed behind the prompt."""

from collections.abc import Sequence

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.same_tokens import where_apart
from lockstep.parity.naming.names import step_of
from lockstep.reference.checkpoint.errors import InputError

NO_ONE_PROMPT = "is of a batch, and says its prompts itself: leave --tokens out"
OTHER_PROMPT = "its prompt is not that of --tokens: it says its token ids itself, and they differ"


def told_apart(dump: Dump, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt, and what was fed behind it if the dump does not say that."""
    count = steps_in(dump)
    end = len(tokens) - count if count < len(tokens) and not dump.fed else len(tokens)
    return [*tokens[:end]], [*tokens[end:]]


def check_told(dump: Dump, tokens: Sequence[int]) -> None:
    """Raise InputError if a dump says its prompt itself, and it is another one.

    Behind it may stand what steps were fed, if the dump does not say that.
    """
    if dump.batch is not None:
        raise InputError(dump.path, NO_ONE_PROMPT, "__metadata__")
    own, told = dump.tokens, told_apart(dump, tokens)[0]
    if own is None or own in (told, [*tokens]):
        return
    raise InputError(dump.path, OTHER_PROMPT, f"from position {where_apart(own, told)} on")


def steps_in(dump: Dump) -> int:
    """Return how many steps a dump holds. Raises: InputError if one is left out."""
    numbers = {step_of(name) for name in dump.shapes} - {0}
    missing = next((one for one in range(1, max(numbers, default=0)) if one not in numbers), None)
    if missing is not None:
        raise InputError(
            dump.path, f"step.{missing}/ is missing, but there is step.{max(numbers)}/"
        )
    return len(numbers)
