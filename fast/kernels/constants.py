"""Numbers that a kernel is compiled for, such as the bits of a code.

They are the type of an argument, not its value: `Constants(bits=4)` is another type than
`Constants(bits=8)`. So Numba compiles a kernel for each, LLVM unrolls the loops over them, and the
compiled code is kept under that type.
"""

from typing import Any

from numba import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)


class Constants:
    """Whole numbers by name, and names; equal ones have one type. A kernel reads the numbers."""

    def __init__(self, **values: int | str):
        self.values = tuple(sorted(values.items()))


class ConstantsType(types.Type):
    def __init__(self, values: tuple[tuple[str, int | str], ...]):
        super().__init__(f"Constants{values}")
        self.values = dict(values)


@typeof_impl.register(Constants)
def type_of(value: Constants, _: Any) -> ConstantsType:
    return ConstantsType(value.values)


@register_model(ConstantsType)
class ConstantsModel(models.OpaqueModel):
    pass


@unbox(ConstantsType)
def from_python(_type: ConstantsType, _value: Any, compiler: Any) -> NativeValue:
    return NativeValue(compiler.context.get_dummy_value())


@infer_getattr
class Attributes(AttributeTemplate):
    key = ConstantsType

    def generic_resolve(self, constants: ConstantsType, name: str) -> types.Type | None:
        return types.intp if isinstance(constants.values.get(name), int) else None


@lower_getattr_generic(ConstantsType)
def number(context: Any, _builder: Any, constants: ConstantsType, _value: Any, name: str) -> Any:
    return context.get_constant(types.intp, constants.values[name])
