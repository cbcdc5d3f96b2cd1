"""The script by which `make wheel` follows the page on CI notices what is not true. By hand."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / ".ci/try_page.py"))
FILE = "<!-- file: said.txt -->\n```py\nhello\n0.123 of it\n```\n"


def follow(page: str, folder: Path) -> str | None:
    return SCRIPT["follow"](page, folder / "project")


def console(*lines: str) -> str:
    return "\n".join(["```console", *lines, "```", ""])


TRUE = {
    "a file": FILE + console("$ cat said.txt", "hello", "0.123 of it"),
    "lines left out": FILE + console("$ cat said.txt", "...", "0.123 of it"),
    "other digits": FILE + console("$ cat said.txt", "hello", "0.124 of it"),
    "two commands": FILE + console("$ cat said.txt", "hello", "$ rm said.txt"),
    "a code": console("$ echo out; exit 3", "out", "$ echo $?", "3"),
    "packages of its own": console("$ ls", "conftest.py", "fast", "parity", "reference"),
}
FALSE = {
    "another line": FILE + console("$ cat said.txt", "hallo"),
    "another order": FILE + console("$ cat said.txt", "0.123 of it", "hello"),
    "more than is printed": FILE + console("$ cat said.txt", "hello", "hello"),
    "another code": console("$ echo out; exit 3", "out", "$ echo $?", "0"),
    "a failure with nothing shown": console("$ exit 1"),
    "no command": "nothing",
}


@pytest.mark.parametrize("name", TRUE)
def test_what_is_true_passes(tmp_path, name):
    assert follow(TRUE[name], tmp_path) is None


@pytest.mark.parametrize("name", FALSE)
def test_what_is_not_is_noticed(tmp_path, name):
    assert follow(FALSE[name], tmp_path)


def test_the_page_has_files_and_commands():
    steps = SCRIPT["steps"]((ROOT / "docs/parity/ci.md").read_text(encoding="utf-8"))
    assert [name for name, _ in steps if name] == ["port.py", "test_port.py"]
    typed = [line for name, text in steps if not name for line, _ in SCRIPT["commands"](text)]
    assert sum(line.startswith("python -m pytest") for line in typed) >= 6
