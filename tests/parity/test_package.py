"""`parity.check` and `parity.diff` are functions, whoever imported which file before. By law."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "first", ["import sys;", "import lockstep.parity.check, lockstep.parity.diff;"]
)
def test_the_interface_is_made_of_functions(first):
    code = (
        f"{first} from lockstep import parity;"
        "print([callable(getattr(parity, name)) for name in parity.__all__ * 2])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == f"{[True] * 6}\n", run.stderr
