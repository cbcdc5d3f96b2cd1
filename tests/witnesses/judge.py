"""How near two models must be, and a table of how near they were. Shared with `tests/peers`."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

# Greatest difference of any logit over the standard deviation of the expected ones. Tiny models in
# float32 stay below the first; the second fails a build.
AIM, BAR = 2e-5, 5e-5
# Best tokens closer than this are a tie to float32: 20 times the bar.
TIE = 20 * BAR
# In half precision: error to float32, root mean square, over that of transformers in the same
# dtype. Below the first a model does not really compute in half precision.
HALF_BARS = (0.7, 1.1)

Table = dict[str, dict[str, list[float]]]
TABLE = pytest.StashKey[Table]()
ERRORS = "lockstep_errors"  # as one of several processes tells them the first


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the greatest difference over the standard deviation of what was expected."""
    assert found.shape == expected.shape, f"shape={found.shape}, but should be {expected.shape}"
    assert expected.size, "nothing was compared"
    difference = np.abs(found.astype(np.float64) - expected)
    return float(difference.max() / expected.std(dtype=np.float64))


def rms_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the root mean square of the difference."""
    assert found.shape == expected.shape and expected.size
    return float(np.sqrt(np.square(found.astype(np.float64) - expected).mean()))


def same_tokens(found: np.ndarray, expected: np.ndarray, logits: np.ndarray) -> int:
    """Compare greedy ids (B, n) row by row up to a parting at a tie; return how many were equal.

    `logits` (B, n, V) are those that the expected ids came from. Where the two best are closer than
    `TIE`, another choice is no error, and what follows it cannot be compared.
    """
    assert found.shape == expected.shape == logits.shape[:2]
    best = np.sort(logits, axis=-1)
    clear = best[..., -1] - best[..., -2] > TIE * logits.std()
    equal = 0
    for row in range(len(found)):
        parted = np.flatnonzero(found[row] != expected[row])
        if len(parted):
            step = parted[0]
            assert not clear[row, step], f"row {row} parts at step {step}: {found} {expected}"
        equal += parted[0] if len(parted) else found.shape[1]
    assert equal, "no token was compared"
    return equal


class Judge:
    """Holds what is found against what is expected, and remembers the errors."""

    def __init__(self, table: Table):
        self.table = table

    def __call__(self, engine: str, row: str, found: np.ndarray, expected: np.ndarray) -> None:
        __tracebackhide__ = True
        worst = error(found, expected)
        self.table[row][engine].append(worst)
        # Not `worst > BAR`: NaN must fail.
        if not worst <= BAR:
            place = np.unravel_index(np.abs(found - expected).argmax(), found.shape)
            pytest.fail(
                f"{row} on {engine}: error={worst:.3g}, but should be at most {BAR:.0e} "
                f"[worst at {tuple(map(int, place))}: {found[place]:.7g} != {expected[place]:.7g}]"
            )


@pytest.fixture(scope="session")
def judge(pytestconfig: pytest.Config) -> Judge:
    return Judge(table_of(pytestconfig))


def table_of(config: pytest.Config) -> Table:
    return config.stash.setdefault(TABLE, defaultdict(lambda: defaultdict(list)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the first of several processes what was seen in this one."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told[ERRORS] = {name: dict(row) for name, row in table_of(session.config).items()}


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be there
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Put what a process told into the table of all; one that died told nothing."""
    table = table_of(node.config)
    for name, row in getattr(node, "workeroutput", {}).get(ERRORS, {}).items():
        for engine, errors in row.items():
            table[name][engine] += errors


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the worst error of each row and engine."""
    table = config.stash.get(TABLE, {})
    config.stash[TABLE] = {}
    engines = sorted({engine for row in table.values() for engine in row})
    if not engines:
        return
    terminalreporter.section(f"worst error (aim {AIM:.0e}, bar {BAR:.0e})")
    terminalreporter.write_line(" ".join(f"{name:>12}" for name in engines))
    for name, row in table.items():
        cells = [f"{max(row[b]):.1e}" if row[b] else "" for b in engines]
        count = max(map(len, row.values()))
        terminalreporter.write_line(
            " ".join(f"{cell:>12}" for cell in cells) + f"  {name} ({count})"
        )
