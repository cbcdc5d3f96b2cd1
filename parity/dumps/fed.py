"""What a dump's port was fed behind the prompt."""

from collections.abc import Sequence

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.names import step_of
from lockstep.reference.checkpoint.errors import InputError


def told_apart(dump: Dump, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt, and what was fed behind it if the dump does not say that."""
    count = steps_in(dump)
    end = len(tokens) - count if count < len(tokens) and not dump.fed else len(tokens)
    return [*tokens[:end]], [*tokens[end:]]


def steps_in(dump: Dump) -> int:
    """Return how many steps a dump holds. Raises: InputError if one is left out."""
    numbers = {step_of(name) for name in dump.shapes} - {0}
    missing = next((one for one in range(1, max(numbers, default=0)) if one not in numbers), None)
    if missing is not None:
        raise InputError(
            dump.path, f"step.{missing}/ is missing, but there is step.{max(numbers)}/"
        )
    return len(numbers)
