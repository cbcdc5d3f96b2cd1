"""The code that a page shows is the code that runs; `python docs/refresh.py` renews it. By law."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OPERATIONS = sorted(path.stem for path in (ROOT / "reference/ops").glob("[!_]*.py"))
refreshed = runpy.run_path(str(ROOT / "docs/refresh.py"))["refreshed"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_is_its_source(page):
    text = page.read_text(encoding="utf-8")
    assert refreshed(text) == text, "run: python docs/refresh.py"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_page_of_an_operation_shows_its_code_and_an_example(operation):
    text = (ROOT / "docs/ops" / f"{operation}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# `{operation}`\n")
    assert f"<!-- code: reference/ops/{operation}.py -->\n```python\ndef " in text or (
        f"<!-- code: reference/ops/{operation}.py -->\n```python\n" in text
        and f"\ndef {operation}(" in text
    )
    assert "\nfrom lockstep.reference.ops import" in text


def test_a_page_that_lags_behind_is_noticed():
    stale = "<!-- code: reference/ops/heads_first.py -->\n```python\nreturn x\n```\n"
    now = refreshed(stale)
    assert now != stale
    assert now.splitlines()[2] == "def heads_first(x: Heads) -> Queries:"
    assert '"""' not in now
    assert "import" not in now


def test_a_function_that_is_gone_is_an_error():
    page = "<!-- code: reference/ops/rope.py:gone -->\n```python\n```\n"
    with pytest.raises(ValueError, match=r"reference/ops/rope\.py defines no gone"):
        refreshed(page)
