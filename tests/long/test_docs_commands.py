"""The commands that the pages show run as they stand, and print what is shown. By law."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["docs/command-line.md", "docs/parity/check.md", "docs/parity/diff.md",
         "docs/parity/explain.md", "docs/parity/reports.md", "docs/faults.md",
         "docs/parity/dump-format.md", "docs/parity/conformance.md",
         "docs/parity/laws.md", "docs/parity/steps.md", "docs/parity/scale.md",
         "docs/decoding/autoregressive.md", "docs/caches.md", "docs/decoding/speculative.md",
         "docs/decoding/diffusion.md", "docs/quantising.md", "docs/streaming.md"]  # fmt: skip
DEMO = ["demo", "--out", "kept"]
COMMAND = re.compile(
    r"^\$ lockstep (?P<line>.*)\n(?P<shown>(?:.*\n)*?)(?=\$|```)"
    r"(?:\$ echo \$\?\n(?P<code>\d+))?",
    re.MULTILINE,
)
SPEED = re.compile(
    r"[0-9.]+ a second|the first after [0-9.]+ s|\d+% of|[0-9.]+ [kMG]?B read|[0-9.]+ s waited"
)


def commands(page: str) -> list[tuple[list[str], list[str], int]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?^)```", text, re.DOTALL | re.MULTILINE)
    found = [match for block in blocks for match in COMMAND.finditer(block + "```")]
    return [
        (shlex.split(match["line"]), bare(match["shown"]), int(match["code"] or 0))
        for match in found
    ]


def bare(printed: str) -> list[str]:
    """Return the lines that say something, without what differs from machine to machine.

    Of a layer that is the size of its rounding errors: its name and its status stay.
    """
    lines = [SPEED.sub("", line).strip() for line in printed.splitlines()]
    kept = [line for line in lines if line not in ("", "...")]
    return [" ".join(line.split()[:: len(line.split()) - 1]) if line.endswith(" ok") else line
            for line in kept]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_as_it_says(page, lockstep, request, tmp_path, monkeypatch):
    for folder in ("parity", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    shown = commands(page)
    assert shown
    for arguments, lines, code in shown:
        said = demo(request) if arguments == DEMO else lockstep(*arguments)
        assert said.code == code, (arguments, said.err)
        printed = bare(said.out + said.err)
        assert [line for line in lines if line not in printed] == [], (arguments, said.out)


def demo(request):
    """Stand for the demo, which two pages begin with."""
    folder, said = request.getfixturevalue("kept_demo")
    shutil.copytree(folder / "kept", "kept")
    return said


def test_what_is_left_out_of_the_comparison():
    """By hand."""
    shown = (
        "204 taps compared\n\n...\nmodel.norm  1.9e-07  0.91  1  -   ok\n"
        "[9 tokens, 3.1 a second, the first after 0.05 s]"
    )
    assert bare(shown) == ["204 taps compared", "model.norm ok", "[9 tokens, , ]"]
