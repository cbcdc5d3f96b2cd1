"""`parity.check`, `diff` and `explain` are functions, whoever was imported before. By law."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "first",
    ["import sys;", "import lockstep.parity.check, lockstep.parity.diff, lockstep.parity.explain;"],
)
def test_the_interface_is_made_of_functions(first):
    code = (
        f"{first} from lockstep import parity;"
        "print({name: callable(getattr(parity, name)) for name in parity.__all__})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    every = dict.fromkeys(("check", "diff", "explain", "to_numpy"), True)
    assert run.stdout == f"{every}\n", run.stderr
