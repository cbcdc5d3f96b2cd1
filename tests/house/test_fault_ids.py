"""The bugs that pages of operations and models name are in the catalogue. By law."""

import re
from pathlib import Path

import pytest

from lockstep.parity.faults import catalogue
from lockstep.parity.faults.left_out import left_out

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for folder in ("ops", "models") for page in (DOCS / folder).glob("*.md"))
SECTION = r"^## (?:Real bugs here|What ports get wrong)$(.*?)(?=^## |\Z)"
BUGS = re.compile(SECTION, re.DOTALL | re.MULTILINE)
ID = re.compile(r"`([a-z]\w*(?:-\w+)+)`")


def named(page: Path) -> list[str]:
    """Return what a page calls bugs: words with hyphens, in the sections about them."""
    sections = BUGS.findall(page.read_text(encoding="utf-8"))
    return [name for section in sections for name in ID.findall(section)]


def test_pages_name_bugs():
    assert sum(map(len, map(named, PAGES))) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_each_is_an_entry_or_left_out(page):
    known = {fault.id for fault in catalogue()} | {*left_out()}
    assert [name for name in named(page) if name not in known] == []
