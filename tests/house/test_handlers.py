"""The name of an error is no other value's: Python deletes it at the end of its handler."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("reference", "fast", "parity", "tests")


def bound_twice(source: str) -> list[str]:
    """Return the functions that bind the name of an error elsewhere too."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [one.name for one in functions if errors(one) & assigned(one)]


def errors(function: ast.FunctionDef) -> set[str]:
    handlers = (node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler))
    return {one.name for one in handlers if one.name}


def assigned(function: ast.FunctionDef) -> set[str]:
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Store)}


def test_a_name_that_is_bound_twice_is_seen():
    """By hand: after the handler there is no `error` left."""
    source = "def f():\n try:\n  error = 1\n except ValueError as error:\n  pass\n return error\n"
    assert bound_twice(source) == ["f"]
    assert not bound_twice(source.replace("as error", "as refused"))


def test_no_function_binds_the_name_of_an_error_elsewhere():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 500
    found = {path: bound_twice(path.read_text(encoding="utf-8")) for path in paths}
    assert not {path: names for path, names in found.items() if names}
