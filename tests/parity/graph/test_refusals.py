"""A file that cannot be read refuses the run, and rules no hypothesis out. By law."""

import ast
from pathlib import Path

import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph.refusals import pass_on_refusal
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.explaining.ports import dumped, is_of, model_of, port

ROOT = Path(__file__).parents[3]
NAME = "models/untied_float32"
# Nothing is read there: a kind of cache refuses heads of a width that it does not have.
READS_NOTHING = "parity/explaining/caches/numbers.py"


def handlers(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return [ast.unparse(one) for one in found if one.type and "ValueError" in ast.unparse(one.type)]


def test_every_place_that_takes_a_valueerror_passes_refusals_on():
    paths = [*(ROOT / "parity/explaining").rglob("*.py"), *(ROOT / "parity/graph").rglob("*.py")]
    found = {path: handlers(path) for path in paths if path != ROOT / READS_NOTHING}
    assert sum(map(len, found.values())) > 15
    for path, some in found.items():
        for text in some:
            assert text.split("\n")[1].strip() == "pass_on_refusal(error)", (path, text)


def test_a_refusal_is_passed_on_and_nothing_else():
    pass_on_refusal(ValueError("shapes"))
    with pytest.raises(InputError, match="file changed"):
        pass_on_refusal(InputError("model", "file changed while reading"))


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
