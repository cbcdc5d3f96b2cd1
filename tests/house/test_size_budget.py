"""Files and functions stay small enough to be read at once. By law."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("reference", "fast", "parity")
FILE_LINES, OP_LINES = 400, 80
FUNCTION_LINES, MEDIAN_LINES = 60, 12
OPS = ("reference/ops", "fast/ops", "fast/cpu")


class Function(NamedTuple):
    """A function's place, and its lines without its docstring."""

    place: str
    lines: int


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no Python file in {folders}"
    return found


@cache
def functions(path: Path) -> list[Function]:
    """Return those of a file, which is parsed once: that takes seconds for all."""
    nodes = statements(ast.parse(path.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = [node.end_lineno - node.lineno + 1 - docstring_lines(node) for node in found]
    names = [f"{path.relative_to(ROOT)}:{node.name}" for node in found]
    return list(map(Function, names, lines))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a file is made of, but expressions: most of it, and they hold no `def`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from statements(child)


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    if ast.get_docstring(node) is None:
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1


def limit(path: Path) -> int:
    return OP_LINES if str(path.parent.relative_to(ROOT)) in OPS else FILE_LINES


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_files_are_short():
    long = [
        f"{path.relative_to(ROOT)}: {length(path)} lines, but at most {limit(path)}"
        for path in python_files(*SOURCES, "lockstep", "tests")
        if path.name != "__init__.py" and length(path) > limit(path)
    ]
    assert not long, "\n".join(long)


def test_functions_are_short():
    found = [one for path in python_files(*SOURCES, "tests") for one in functions(path)]
    long = [one for one in found if one.lines > FUNCTION_LINES]
    assert not long, "\n".join(f"{one.place}: {one.lines} lines" for one in long)


@pytest.mark.parametrize("package", SOURCES)
def test_most_functions_fit_a_glance(package):
    found = [one.lines for path in python_files(package) for one in functions(path)]
    assert median(found) <= MEDIAN_LINES
