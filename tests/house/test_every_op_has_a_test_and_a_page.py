"""One name an operation and a model: its file, its test and its page. By law, both ways."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def names(folder: str, pattern: str) -> set[str]:
    """Name the files that match, without what the pattern adds to the name."""
    before, after = pattern.split("*")
    found = {path.name[len(before) : -len(after)] for path in (ROOT / folder).glob(pattern)}
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("kind", ["ops", "models"])
def test_every_file_has_a_test_and_a_page_and_no_other_exists(kind):
    files = names(f"reference/{kind}", "*.py")
    assert files
    assert names(f"tests/reference/{kind}", "test_*.py") == files
    assert names(f"docs/{kind}", "*.md") == files
