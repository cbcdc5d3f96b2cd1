"""What the README shows is what happens: its Python runs, its make targets exist. By law."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_an_example():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_the_python_runs(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(compile(block, "README.md", "exec"), {})


def test_the_make_targets_exist():
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)", README))
    targets = set(re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "test-peers"} <= named <= targets
