"""What the pages show is what happens: their Python runs, and prints what they say. By law.

The blocks of a page are run in order in one namespace. Output is the text block that follows, or
the lines after `#>`. Blocks that `docs/refresh.py` pastes are no examples.
"""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?P<pasted><!-- code: \S+ -->\n)?```python\n(?P<code>.*?)^```\n"
    r"(?:\n*```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)


class Example(NamedTuple):
    """A block of Python, the line that it starts on, and what it prints, if the page says."""

    code: str
    line: int
    output: str | None


def examples(page: str) -> Iterator[Example]:
    for found in BLOCK.finditer(page):
        if not found["pasted"]:
            line = page.count("\n", 0, found.start("code"))
            yield Example(found["code"], line, found["output"] or inline_output(found["code"]))


def inline_output(code: str) -> str | None:
    shown = re.findall(r"^#> ?(.*\n)", code, re.MULTILINE)
    return "".join(shown) if shown else None


def check(page: str, name: str) -> int:
    """Run the examples of a page; return how many there are."""
    namespace, found = {"__name__": "example"}, list(examples(page))
    for example in found:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * example.line + example.code, name, "exec"), namespace)
        if example.output is not None:
            assert printed.getvalue() == example.output, f"{name}:{example.line}"
    return len(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_are_true(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    count = check(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    assert count or page.parent.name != "ops"


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nprint(1)\n#> 2\n```\n",
        "```python\nx = 1\n```\n```text\n1\n```\n",
    ],
)
def test_an_output_that_is_not_true_is_noticed(page):
    with pytest.raises(AssertionError):
        check(page, "page.md")


def test_blocks_share_their_names_and_pasted_ones_do_not_run():
    pasted = "<!-- code: reference/ops/add.py -->\n```python\nraise SystemExit\n```\n"
    first, second = "```python\nx = 3\n```\n", "```python\nprint(x)\n#> 3\n```\n"
    assert check(pasted + first + second, "page.md") == 2
