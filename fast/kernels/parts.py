"""Code that kernels are composed of: machine code is made of the whole kernel alone.

Numba would make some of each function by itself too, which nobody calls. What it optimises of a
part stays: without it a kernel compiles in less time, and a prompt takes up to a tenth longer.
"""

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags, compile_internal

NEVER_ALONE: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
Key = tuple[Callable[..., Any], Any]
_bodies: dict[Key, Any] = {}


class NoEnvironment:
    """What Numba tells of the Python objects that machine code uses: here is no such code."""

    def set_env(self, name: str, environment: Any) -> None:
        pass


class Part(JITCodeLibrary):
    """Code that is linked into a kernel's."""

    codegen: Any = NoEnvironment()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0  # as of a function that is not there


class PartCompiler(Compiler):
    """Numba's own, but for where the code goes."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any):
        super().__init__(typing, target, Part(target.codegen(), "part"), *rest)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of a kernel: it becomes a piece of each kernel that calls it.

    So what is constant there, such as the bits of a code, is constant here, and loops unroll.
    """
    how = {"forceinline": True, "error_model": "numpy", "pipeline_class": PartCompiler}
    return njit(**how, **NEVER_ALONE)(function)


def linked(context: Any, body: Callable[..., Any], signature: Any) -> Any:
    """Link a kernel's function into the code that is being made; return what Numba knows of it.

    For the same types it is compiled once.
    """
    key = body, signature
    if key not in _bodies:
        library = Part(context.codegen(), body.__name__)
        given = body, signature.args, signature.return_type, flags(), {}
        _bodies[key] = compile_internal(context.typing_context, context, library, *given)
    context.active_code_library.add_linking_library(_bodies[key].library)
    return _bodies[key].fndesc


def flags() -> Any:
    found: Any = Flags()
    found.error_model, found.forceinline, found.nrt = "numpy", True, True
    found.no_compile = found.no_cpython_wrapper = found.no_cfunc_wrapper = True
    return found
