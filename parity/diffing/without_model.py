"""Compare two sides by their distance alone."""

from collections.abc import Callable, Iterator
from math import prod

from lockstep.parity.diffing.plain import judged_by_rows, judged_plainly, not_judged
from lockstep.parity.dumps.crew import Crew, cores
from lockstep.parity.judging.padding import Padding
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import CACHED, is_tap, step_of
from lockstep.parity.replaying.cached import OTHER_SLOTS
from lockstep.parity.resuming.kept_taps import NOTHING, Kept

Progress = Callable[[str], None]

THREADS = 16  # at most: each keeps two pieces
MANY = 1 << 25  # numbers of a side: in the time that they take NumPy, Numba has been loaded


def without_model(
    left: Alignment,
    right: Alignment,
    dtype: str,
    length: int,
    progress: Progress,
    padding: Padding | None,
    kept: Kept = NOTHING,
) -> Iterator[Tap]:
    """Compare every shared tap by its distance alone. `length` is how many tokens it is of."""
    many = sum(map(prod, left.dump.shapes.values())) >= MANY
    with Crew(min(cores(), THREADS), compiled=many) as crew:
        for name in left.names:
            if name in right.names:
                known = kept.taps(name)
                if known is None:
                    known = [judged(name, left, right, dtype, length, padding, crew)]
                    kept.add(name, known)
                yield from known
                progress(name)


def judged(
    name: str,
    left: Alignment,
    right: Alignment,
    dtype: str,
    length: int,
    padding: Padding | None,
    crew: Crew,
) -> Tap:
    """Compare a tap that both sides have."""
    truth = left.parts(name)
    port = right.parts(name, truth.shape)
    if name.endswith(CACHED) and port.shape != truth.shape:
        return not_judged(name, port.shape, OTHER_SLOTS)
    if padding is not None and port.shape == truth.shape:
        return judged_by_rows(name, port.whole(), truth.whole(), dtype, padding)
    if is_tap(name) or rows_are_tokens(name, port.shape, truth.shape, length):
        return judged_plainly(name, port, truth, dtype, crew)
    return not_judged(name, port.shape, "its rows are not the tokens")


def rows_are_tokens(name: str, port: tuple[int, ...], truth: tuple[int, ...], length: int) -> bool:
    """Say whether a module that Lockstep does not know gives a row, or several, for each token.

    An expert of a mixture, or a tower for images, has other rows.
    """
    length = 1 if step_of(name) else length
    return port == truth and prod(truth[:-1]) % max(length, 1) == 0
