"""Every row of the table of docs/caches.md is what is measured.

Bytes exactly, errors as far as they repeat.
"""

import re
import runpy

import pytest

from lockstep.reference.stores.kinds import KINDS
from tests.reference.caches.test_docs_page import ROOT, page

ROW = re.compile(
    r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) % \|$", re.M
)


def test_every_row_is_what_is_measured():
    shown = {row[0]: [float(figure) for figure in row[1:]] for row in ROW.findall(page())}
    assert list(shown) == [*KINDS]
    measured = list(runpy.run_path(str(ROOT / "docs/measure_caches.py"))["rows"]())
    assert [kind for kind, *_ in measured] == [*KINDS]
    for kind, held, errors, same in measured:
        assert round(held[0]) == shown[kind][0]
        assert held[1] == held[2] and round(held[1]) == shown[kind][1]
        for error, figure in zip(errors, shown[kind][2:5], strict=True):
            # What loses nothing differs by the order of sums, which a machine may choose.
            assert error < 5e-6 if figure < 5e-6 else error == pytest.approx(figure, rel=0.2), kind
        assert 100 * same == pytest.approx(shown[kind][5], abs=2)
