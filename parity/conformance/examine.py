"""Let Hypothesis look for an example that fails, and make it small."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lockstep.parity.conformance.backends import Broken, Failed, Unsupported
from lockstep.parity.conformance.case import Case
from lockstep.parity.conformance.compare import Compared, compare
from lockstep.parity.conformance.draw import Draw
from lockstep.parity.conformance.families import EXAMPLES
from lockstep.reference.checkpoint.errors import InputError

Backend = Callable[[Case], np.ndarray]


@dataclass
class Row:
    """What came of one operation: "ok", "differs", "failed", "not implemented" or "not tried".

    `ratio` is the worst error over the noise of the examples that passed, `share` that of what is
    allowed; `example` and `place` tell of the smallest example that failed.
    """

    op: str
    status: str = "ok"
    examples: int = 0
    left_out: int = 0
    ratio: float = 0.0
    share: float = 0.0
    example: tuple[str, ...] = ()
    place: str | None = None
    case: Case | None = None


ENOUGH = 20  # examples that a backend may turn down before it is taken not to have an operation


class Missing(BaseException):
    """Nothing is searched for any longer. No Exception, so that Hypothesis lets it pass."""


class Wrong(Exception):
    """An example failed; Hypothesis makes it smaller."""


def examine(op: str, backend: Backend, *, examples: int, seed: int, dtype: np.dtype) -> Row:
    """Try one operation on up to `examples` examples and return what came of it.

    Raises: InputError if Hypothesis is not installed.
    """
    row = Row(op)

    def attempt(case: Case) -> None:
        row.examples += row.status == "ok"  # those of the shrinking are not counted
        try:
            seen = compare(case, backend(case))
        except Unsupported:
            row.left_out += row.status == "ok"
            if row.left_out == row.examples == ENOUGH:
                raise Missing from None
            return
        except Failed as error:
            seen, status = Compared(False, 0.0, 0.0, str(error)), "failed"
        else:
            status = "differs"
        if seen.passed:
            row.ratio, row.share = max(row.ratio, seen.ratio), max(row.share, seen.share)
            return
        row.status, row.case, row.place = status, case, seen.place
        raise Wrong(op, status)

    try:
        search(lambda source: Case(op, EXAMPLES[op](Draw(source, dtype)), dtype), attempt,
               examples=examples, seed=seed)  # fmt: skip
    except Wrong:
        row.example = () if row.case is None else tuple(row.case.lines())
    except Missing:
        pass
    except Broken as error:
        row.status, row.place = "failed", str(error)
    if row.status == "ok" and row.left_out == row.examples:
        row.status = "not implemented"
    return row


def search(
    build: Callable[[Any], Case], attempt: Callable[[Case], None], *, examples: int, seed: int
) -> None:
    """Call `attempt` on examples; what it raises is raised again for the smallest one that fails.

    The same seed gives the same examples while the same code is loaded, for Hypothesis takes some
    of its numbers from there. Nothing is written to the working folder.
    """
    hypothesis = hypothesis_package()
    strategies = hypothesis.strategies

    class FromHypothesis:
        def __init__(self, draw: Any):
            self.draw = draw

        def whole(self, low: int, high: int) -> int:
            return self.draw(strategies.integers(low, high))

        def one_of(self, choices: Sequence[Any]) -> Any:
            return self.draw(strategies.sampled_from(choices))

    cases = strategies.composite(lambda draw: build(FromHypothesis(draw)))()
    settings = hypothesis.settings(
        max_examples=examples, database=None, deadline=None, print_blob=False,
        report_multiple_bugs=False, verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )  # fmt: skip

    @settings
    @hypothesis.seed(seed)
    @hypothesis.given(cases)
    def run(case: Case) -> None:
        attempt(case)

    with elsewhere():
        run()


@contextmanager
def elsewhere() -> Iterator[None]:
    """Let Hypothesis keep what it writes in a folder that goes away again."""
    from hypothesis.configuration import set_hypothesis_home_dir

    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


def hypothesis_package() -> Any:
    """Return Hypothesis. Raises: InputError that says how to install it."""
    try:
        import hypothesis
        import hypothesis.strategies
    except ImportError:
        how = "pip install 'lockstep-parity[conformance]'"
        raise InputError("conformance", f"needs the hypothesis package: {how}") from None
    return hypothesis
