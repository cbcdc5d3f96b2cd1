"""The page on an architecture without a reference is typed as it stands. By law."""

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/parity/new-architecture.md"
SCRIPT = runpy.run_path(str(ROOT / ".ci/try_page.py"))
# As in the environment of the page, where Lockstep is installed from this folder.
COMMANDS = {"python": "", "lockstep": "-m lockstep.parity.cli "}


def test_the_page_does_as_it_says(tmp_path, monkeypatch):
    (tmp_path / "lockstep").symlink_to(ROOT)  # the page finds it beside the project
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, what in COMMANDS.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what}"$@"\n')
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    page = PAGE.read_text(encoding="utf-8")
    assert SCRIPT["follow"](page, tmp_path / "project") is None
    shown = [line for name, text in SCRIPT["steps"](page) if not name
             for line, _ in SCRIPT["commands"](text)]  # fmt: skip
    assert sum("--model olmo2" in line for line in shown) == 3
