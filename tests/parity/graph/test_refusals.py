"""A file that cannot be read refuses the run, and rules no hypothesis out. By law."""

import ast
from pathlib import Path

import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph.refusals import if_computable
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.explaining.ports import dumped, is_of, model_of, port

ROOT = Path(__file__).parents[3]
NAME = "models/untied_float32"
# Nothing is read there: a kind of cache refuses heads of a width that it does not have.
READS_NOTHING = "parity/explaining/caches/numbers.py"


def handlers(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return [ast.unparse(one) for one in found if one.type and "ValueError" in ast.unparse(one.type)]


def test_no_other_place_takes_a_valueerror():
    paths = [*(ROOT / "parity/explaining").rglob("*.py"), *(ROOT / "parity/graph").rglob("*.py")]
    assert {path for path in paths if handlers(path)} == {ROOT / READS_NOTHING}


def left_by(error, *others):
    with if_computable(*others):
        raise error


def test_a_refusal_is_raised_and_what_cannot_be_computed_is_not():
    left_by(ValueError("shapes"))
    left_by(IndexError("shapes"), IndexError, TypeError)
    with pytest.raises(IndexError):
        left_by(IndexError("shapes"))
    with pytest.raises(InputError, match="file changed"):
        left_by(InputError("model", "file changed while reading"), TypeError)


def test_a_file_that_cannot_be_read_once_refuses_the_run(monkeypatch):
    """Whichever read it is: of layers alone, with a bug whose search reads matrices again."""
    taps = port(NAME, ["norm-plus-one-missing"])
    taps = {tap: value for tap, value in taps.items() if is_of("layers", tap)}
    own, count, spoilt = Tensors.__call__, [0], [-1]

    def call(self, tensor):
        count[0] += 1
        if count[0] == spoilt[0]:
            raise InputError("model", "cannot be read: Input/output error")
        return own(self, tensor)

    monkeypatch.setattr(Tensors, "__call__", call)
    explain(model_of(NAME), dumped(taps, NAME))
    for place in range(1, count[0], count[0] // 5):
        count[0], spoilt[0] = 0, place
        with pytest.raises(InputError, match="Input/output error"):
            explain(model_of(NAME), dumped(taps, NAME))
