"""`lockstep --help` answers at once: nothing heavy is imported before it is needed. By law."""

import subprocess
import sys

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
