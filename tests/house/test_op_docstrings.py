"""An operation's docstring says what docs/adding-an-op.md promises of it. By law."""

import ast
from pathlib import Path

import pytest

OPS = Path(__file__).parents[2] / "reference" / "ops"
FILES = sorted(path for path in OPS.glob("*.py") if path.name != "__init__.py")
PARTS = ("Rounding", "dges", "Source: ")  # edges may stand behind "Rounding and"


def docstring(path: Path) -> str:
    """Return what the function that the file is named after says of itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return ast.get_docstring(functions[path.stem]) or ""


def raises(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_says_where_it_rounds_its_edges_and_its_source(path):
    lacking = [part for part in PARTS if part not in docstring(path)]
    assert not lacking


@pytest.mark.parametrize("path", [*filter(raises, FILES)], ids=lambda path: path.stem)
def test_it_says_what_it_raises(path):
    assert "Raises: " in docstring(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_parts_say_what_they_do(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert all(ast.get_docstring(node) for node in parts), [node.name for node in parts]
