"""Paste the code of the sources into the pages: `python docs/refresh.py`.

A page asks for a file by a comment before a Python block, `<!-- code: reference/ops/rope.py -->`,
and for one function of it by `<!-- code: reference/models/qwen3.py:block -->`. Imports and
docstrings are left out: the page says what they say.
"""

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parent
PASTED = re.compile(
    r"^(<!-- code: (\S+?)(?::(\w+))? -->\n```python\n).*?^(```)$", re.DOTALL | re.MULTILINE
)


def refreshed(page: str) -> str:
    """Return the text of a page with every pasted block as its source is now."""
    return PASTED.sub(lambda found: found[1] + code(found[2], found[3]) + found[4], page)


def code(path: str, name: str | None) -> str:
    """Return what a file defines, or one function of it. Raises: ValueError if it is not there."""
    source = (DOCS.parent / path).read_text(encoding="utf-8")
    lines = source.splitlines()
    parts = [text(lines, node) for node in ast.parse(source).body if wanted(node, name)]
    if not parts:
        raise ValueError(f"{path} defines no {name}")
    return "\n\n\n".join(parts) + "\n"


def wanted(node: ast.stmt, name: str | None) -> bool:
    if name is not None:
        return getattr(node, "name", None) == name
    return not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)


def text(lines: list[str], node: ast.stmt) -> str:
    """Return the lines of a statement, a function's without its docstring."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
    kept = range(first, node.end_lineno + 1)
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        docstring = range(node.body[0].lineno, node.body[0].end_lineno + 1)
        kept = [number for number in kept if number not in docstring]
    return "\n".join(lines[number - 1] for number in kept)


def main() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
