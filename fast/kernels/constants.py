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
    unbox,
)


class Constants:
    """The numbers of a format, which a kernel reads by name. Equal ones have one type."""

    def __init__(self, *, format: str, **numbers: int):
        self.format, self.numbers = format, numbers
        self._numba_type_ = ConstantsType(format, numbers)  # what Numba asks an argument for first


class ConstantsType(types.Type):
    def __init__(self, format: str, numbers: dict[str, int]):
        super().__init__(f"Constants({format}, {sorted(numbers.items())})")
        self.format, self.numbers = format, numbers


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
        return types.intp if name in constants.numbers else None


@lower_getattr_generic(ConstantsType)
def number(context: Any, _builder: Any, constants: ConstantsType, _value: Any, name: str) -> Any:
    return context.get_constant(types.intp, constants.numbers[name])
