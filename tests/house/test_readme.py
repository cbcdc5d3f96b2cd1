"""What the README tells to type exists. By law. Its Python runs in tests/long."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_make_targets_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)", readme))
    targets = set(re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "test-peers"} <= named <= targets
