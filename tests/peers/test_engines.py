"""The same bugs through transformers, mlx-lm and llama.cpp: what the page says came out.

By witness, live: each engine runs the checkpoint that a bug is planted in, and `explain` has the
right one. Nothing is drawn, so each run is the same.
"""

from collections.abc import Iterator

import pytest

from tests.peers.engines.bugs import COMBINATIONS, SINGLES
from tests.peers.engines.runs import BASES, ENGINES, PAGE, Bench, cases, line, row, summary
from tests.witnesses import build

CASES = {name: (of, bugs) for name, of, bugs in cases()}
LINES = PAGE.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    build.settle()
    yield Bench(tmp_path_factory.mktemp("engines"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BASES)
def test_a_clean_capture_raises_no_alarm(name, engine, bench):
    found = bench.explained(engine, name)
    assert (found.verdict, found.faults, found.unexplained) == ("clean", [], [])
    assert found.compared > 25


@pytest.mark.parametrize("name", CASES)
def test_what_is_planted_comes_out_as_the_page_says(name, bench):
    of, bugs = CASES[name]
    assert line(row(name, of, bench, bugs)) in LINES


def test_the_page_counts_what_is_in_its_rows():
    """By law: its last rows follow from the others, and nothing is named that is not there."""
    rows = [[one.strip() for one in text.strip("|").split("|")] for text in LINES]
    rows = [one for one in rows if one[0] in CASES]
    singles, several = rows[: len(SINGLES)], rows[len(SINGLES) :]
    assert [one[0] for one in rows] == [*CASES] and len(several) == len(COMBINATIONS)
    assert line(summary(singles)) in LINES and line(summary(several)) in LINES
    assert not any(word in cell for one in rows for cell in one[2:] for word in ("wrong", "missed"))
    text = " ".join(LINES)
    assert f"the same {len(SINGLES)} bugs" in text and f"{len(COMBINATIONS)} combinations" in text
    # Of bugs alone at most two in one engine are not named.
    assert all([one[2 + place] for one in singles].count("named") >= len(singles) - 2
               for place in range(len(ENGINES)))  # fmt: skip
