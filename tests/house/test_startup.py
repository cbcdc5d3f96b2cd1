"""Commands begin at once: nothing is imported before it is needed. By law."""

import subprocess
import sys

import numpy as np
import pytest

HEAVY = ("numpy", "mlx", "ml_dtypes", "tokenizers", "jinja2", "torch", "transformers")

CODE = f"""
import sys
from lockstep.parity.cli import main
try:
    code = main()
except SystemExit as stop:
    code = stop.code
found = [name for name in {HEAVY} if name in sys.modules]
sys.exit(f"imported {{found}}" if found else code or 0)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["generate", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    run = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "usage" in run.stdout.lower()
    assert run.stderr == ""


PLAIN_DIFF = """
import sys
from lockstep.parity.cli import main
assert main() == 0
sys.exit([name for name in sys.modules if name.startswith("lockstep.parity.explaining")] or 0)
"""


def test_a_plain_diff_imports_nothing_that_explains(tmp_path):
    np.savez(tmp_path / "port.npz", x=np.ones((3, 4), np.float32))
    command = [sys.executable, "-c", PLAIN_DIFF, "diff", *["port.npz"] * 2]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "every compared value is the same" in run.stdout
