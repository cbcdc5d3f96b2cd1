"""Whoever rounds is written twice: who may import whom, read from the sources. By law."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
STANDARD = sys.stdlib_module_names


class Rule(NamedTuple):
    """What a package may import at all, and what besides inside of a function only."""

    packages: tuple[str, ...]
    lazily: tuple[str, ...] = ()


RULES = {
    "reference": Rule(("numpy", "ml_dtypes", "tokenizers", "jinja2", "lockstep.reference")),
    "fast": Rule(
        (
            *("numpy", "ml_dtypes", "mlx", "lockstep.fast"),
            *("lockstep.reference.checkpoint", "lockstep.reference.tokenizer"),
            *("lockstep.reference.stores", "lockstep.reference.scheduling"),
        )
    ),
    "parity": Rule(
        ("numpy", "lockstep.parity", "lockstep.reference", "lockstep.__version__"),
        lazily=(
            *("lockstep.fast", "mlx", "mlx_lm", "ml_dtypes", "torch", "transformers"),
            *("tokenizers", "safetensors", "llama_cpp", "gguf", "hypothesis"),
        ),
    ),
}


# What one folder alone may import: pytest loads its plugin, and kernels are loaded where Numba is.
ELSEWHERE = {
    "lockstep.parity.plugin": ("pytest",),
    "lockstep.fast.kernels": ("numba", "llvmlite"),
    "lockstep.fast.kernels.formats": ("numba", "llvmlite"),
}


class Import(NamedTuple):
    """One imported name, and whether only a call of a function imports it."""

    name: str
    line: int
    lazy: bool


def imports(path: Path, package: str) -> list[Import]:
    """List what a file imports; `package` is the one that it lies in."""
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        found.extend(Import(name, node.lineno, lazy) for name in names(node, package))
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy or inside or for_types_only(node))

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def names(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the absolute names that one statement imports; import_module("x") counts."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: 1 - node.level or None] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
        "import_module",
        "__import__",
    ):
        yield start_of_text(node.args[0])


def start_of_text(node: ast.AST) -> str:
    """Return a string, or what stands before the first brace of an f-string."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    return str(node.value).rstrip(".") if isinstance(node, ast.Constant) else ast.unparse(node)


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def allowed(item: Import, rule: Rule) -> bool:
    if item.name.split(".")[0] in STANDARD:
        return True
    packages = rule.packages + rule.lazily if item.lazy else rule.packages
    return within(item.name, packages)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def forbidden(folder: Path, root: str, rule: Rule) -> list[str]:
    """List the imports of a folder that its rule does not allow."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        package = ".".join([root, *path.relative_to(folder).parent.parts])
        found += [
            f"{path}:{item.line} imports {item.name}"
            for item in imports(path, package)
            if not allowed(item, rule) and not within(item.name, ELSEWHERE.get(package, ()))
        ]
    return found


@pytest.mark.parametrize("name", RULES)
def test_packages_import_only_what_they_may(name):
    assert list((ROOT / name).rglob("*.py"))
    found = forbidden(ROOT / name, f"lockstep.{name}", RULES[name])
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("reference", "import mlx.core as mx"),
        ("reference", "def f():\n    import torch"),
        ("reference", "from lockstep import fast"),
        ("reference", "from ...fast.ops import rope"),
        ("reference", "from ... import parity"),
        ("reference", "import_module('lockstep.fast')"),
        ("reference", "import safetensors"),
        ("fast", "from lockstep.reference.ops.rope import rope"),
        ("fast", "from lockstep.reference import ops"),
        ("fast", "from lockstep.reference.caches.int8 import absmax"),
        ("fast", "from lockstep import reference"),
        ("fast", "from ...reference import models"),
        ("fast", "importlib.import_module(f'lockstep.reference.models.{name}')"),
        ("parity", "import mlx.core as mx"),
        ("parity", "from lockstep import fast"),
        ("parity", "class A:\n    import torch"),
        ("parity", "try:\n    import llama_cpp\nexcept ImportError:\n    llama_cpp = None"),
        ("parity", "import pytest"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, package, line):
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "planted.py").write_text(line)
    assert len(forbidden(tmp_path, f"lockstep.{package}", RULES[package])) == 1


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("reference", "import os.path\nfrom . import rope\nfrom ..shapes import Array"),
        ("fast", "from lockstep.reference.checkpoint.errors import InputError"),
        ("fast", "from lockstep.reference.stores.growing import Growing"),
        ("fast", "from lockstep.reference.scheduling.reader import Reader"),
        ("parity", "def f():\n    import torch\n    from lockstep import fast"),
        ("parity", "if TYPE_CHECKING:\n    import mlx.core as mx"),
    ],
)
def test_an_allowed_import_is_let_through(tmp_path, package, line):
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "planted.py").write_text(line)
    assert forbidden(tmp_path, f"lockstep.{package}", RULES[package]) == []


ROUNDS = {
    *("exp", "sqrt", "log", "mean", "cumsum", "einsum", "dot", "matmul", "divide", "rint"),
    *("subtract", "multiply", "float32", "float64", "astype", "sum", "prod", "var", "std", "power"),
    *("exp2", "expm1", "log1p", "log2", "tanh", "float16", "true_divide", "inner", "vdot"),
}
DIVISIONS = ast.Div | ast.MatMult | ast.Pow
WHOLE = ("astype(np.int64)", "astype(np.int32)")  # between whole numbers nothing is lost


def rounding(source: str) -> list[str]:
    """List the arithmetic of floats in a file: divisions, products of arrays, sums, casts."""
    found = []
    tree = ast.parse(source)
    whole = {node.func for node in ast.walk(tree)
             if isinstance(node, ast.Call) and ast.unparse(node).endswith(WHOLE)}  # fmt: skip
    for node in ast.walk(tree):
        counts = isinstance(node, ast.BinOp | ast.AugAssign)
        divides = counts and isinstance(node.op, DIVISIONS)
        literal = counts and any(isinstance(one, ast.Constant) and isinstance(one.value, float)
                                 for one in operands(node))  # fmt: skip
        named = isinstance(node, ast.Attribute) and node.attr in ROUNDS and node not in whole
        bare = isinstance(node, ast.ImportFrom) and node.module in ("numpy", "math") and any(
            alias.name in ROUNDS for alias in node.names
        )  # fmt: skip
        if divides or literal or named or bare:
            found.append(f"{node.lineno} {ast.unparse(node)}")
    return found


def operands(node: ast.BinOp | ast.AugAssign) -> Iterator[ast.expr]:
    """Yield what is reckoned with, without its sign."""
    for one in (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,):
        yield one.operand if isinstance(one, ast.UnaryOp) else one


@pytest.mark.parametrize("name", ["stores", "scheduling"])
def test_what_both_sides_share_does_not_round(name):
    paths = sorted((ROOT / "reference" / name).glob("*.py"))
    found = [f"{path.name}:{line}" for path in paths for line in rounding(path.read_text("utf-8"))]
    assert len(paths) >= 10 and not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        *("y = a / b", "y = a @ b", "y = np.exp(x)", "y = np.cumsum(x)", "y = x.astype(kind)"),
        *("y = np.float64(x)", "y /= b", "y @= b", "y = a**2", "y **= 2", "y = x.sum()"),
        *("from numpy import exp", "from math import sqrt as root", "y = 0.5 * x", "y += -1e-6"),
    ],
)
def test_arithmetic_of_floats_is_found(line):
    assert len(rounding(f"n = len(x) // 2\nn += 1\nlimit: float = 0.5\n{line}")) == 1
    assert rounding("x.astype(np.int64) + 1") == []


NUMPY_ALONE = """
import importlib, pkgutil, sys
for name in ("mlx", "ml_dtypes", "tokenizers", "jinja2", "torch", "transformers"):
    sys.modules[name] = None
import lockstep.reference
names = [module.name for module in pkgutil.iter_modules(lockstep.reference.ops.__path__)]
for name in names:
    importlib.import_module(f"lockstep.reference.ops.{name}")
lockstep.reference.load
print(len(names))
"""


def test_the_reference_needs_numpy_alone():
    run = subprocess.run([sys.executable, "-c", NUMPY_ALONE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= 10
