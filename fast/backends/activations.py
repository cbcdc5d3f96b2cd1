"""What activations are while they are multiplied by codes: `--activations`."""

from functools import partial
from types import SimpleNamespace
from typing import Any

from lockstep.fast import cpu, kernels
from lockstep.fast.cpu.experts import gated_experts
from lockstep.fast.cpu.geglu import geglu
from lockstep.fast.cpu.linear import multiplied
from lockstep.fast.cpu.swiglu import swiglu
from lockstep.reference.checkpoint.errors import InputError

DIGITS = {"int16": 2, "int8": 1}  # of a byte each
NAMES = ("float32", *DIGITS)


def operations(activations: str) -> Any:
    """Return the namespace `fast.cpu`, or one whose products take activations of fewer digits.

    Raises: InputError for another name, and where no kernel makes such products.
    """
    if activations not in NAMES:
        raise InputError("activations", f"{activations}, but should be one of {', '.join(NAMES)}")
    if activations == "float32":
        return cpu
    if not possible():
        what = "takes Numba and AVX-512 VNNI, or AVX2 where there is no AVX-512"
        raise InputError("activations", f"{activations} {what}")
    linear = partial(multiplied, digits=DIGITS[activations])
    changed = {
        "linear": linear,
        "experts": partial(gated_experts, gated=swiglu, linear=linear),
        "geglu_experts": partial(gated_experts, gated=geglu, linear=linear),
    }
    return SimpleNamespace(**{name: getattr(cpu, name) for name in cpu.__all__} | changed)


def possible() -> bool:
    if not kernels.available():
        return False
    from lockstep.fast.kernels.tile import adds_four, adds_two

    return adds_four() or adds_two()
