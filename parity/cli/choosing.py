"""Which taps and which tokens a command is to look at."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError

LONGEST = 1 << 20  # bytes of a file of globs


def globs_of(options: Namespace) -> list[str] | None:
    """Return the globs of --taps, those of a file if it is @FILE; None if all taps are meant.

    Raises: InputError if the file cannot be read or names nothing.
    """
    if options.taps is None:
        return None
    if not options.taps.startswith("@"):
        return options.taps.split(",")
    path = Path(options.taps[1:])
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(
            path, f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if len(text) > LONGEST:
        raise InputError(path, f"is longer than {LONGEST >> 20} MiB, so it is no list of taps")
    globs = [line.strip() for line in text.splitlines()]
    globs = [line for line in globs if line and not line.startswith("#")]
    if not globs:
        raise InputError(path, "names no taps: a glob a line is wanted")
    return globs


def check_positions(options: Namespace, rows: Sequence[Sequence[int]] = ()) -> None:
    """Raise InputError if --positions is not in its grammar, or is in no prompt that is at hand."""
    if options.positions is not None:
        from lockstep.parity.excerpts.places import places_in

        places_in(options.positions, [len(row) for row in rows], "--positions")
