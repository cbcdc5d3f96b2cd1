"""The commands that the pages show run as they stand, and end with the code shown. By law."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["docs/command-line.md", "docs/parity/check.md", "docs/parity/diff.md"]
COMMAND = re.compile(
    r"^\$ lockstep (?P<line>.*)\n(?:.*\n)*?(?=\$|```)(?:\$ echo \$\?\n(?P<code>\d+))?", re.MULTILINE
)


def commands(page: str) -> list[tuple[list[str], int]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?^)```", text, re.DOTALL | re.MULTILINE)
    found = [match for block in blocks for match in COMMAND.finditer(block + "```")]
    return [(shlex.split(match["line"]), int(match["code"] or 0)) for match in found]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_end_as_it_says(page, lockstep, tmp_path, monkeypatch):
    (tmp_path / "parity").symlink_to(ROOT / "parity")
    monkeypatch.chdir(tmp_path)
    shown = commands(page)
    assert shown
    for arguments, code in shown:
        said = lockstep(*arguments)
        assert said.code == code, (arguments, said.err)
