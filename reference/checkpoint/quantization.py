"""What config.json says about quantisation: a default, and overrides for single modules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
AFFINE = "affine"
MODES = (AFFINE, *MINIFLOATS)
FORMAT_KEYS = ("bits", "group_size", "mode")


@dataclass(frozen=True)
class Declared:
    """Bits, group size and mode as declared; None where the config is silent."""

    bits: int | None
    group_size: int | None
    mode: str

    def __str__(self) -> str:
        bits = "unsaid bits" if self.bits is None else f"{self.bits} bits"
        group = "unsaid size" if self.group_size is None else str(self.group_size)
        mode = "" if self.mode == AFFINE else f" by {self.mode}"
        return f"{bits} in groups of {group}{mode}"


@dataclass(frozen=True)
class QuantizationConfig:
    """`default` is None if the model is not declared quantised. An override of None says: plain."""

    default: Declared | None
    overrides: dict[str, Declared | None] = field(default_factory=dict)

    def declared(self, module: str) -> Declared | None:
        """Return what is declared for a module path, whichever way the config spells the path."""
        for name in spellings(module):
            if name in self.overrides:
                return self.overrides[name]
        return self.default

    def override(self, module: str) -> Declared | None:
        """Return what is declared for this module by itself, None if nothing or plain."""
        found = (self.overrides.get(name) for name in spellings(module))
        return next((declared for declared in found if declared is not None), None)


def spellings(module: str) -> tuple[str, ...]:
    """Return the paths under which a converter may have listed a module.

    A text model inside a multimodal one is wrapped once more, before or after `model`.
    """
    wrappers = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
    tail = module.removeprefix(next(one for one in wrappers if module.startswith(one)))
    return (module, *(wrapper + tail for wrapper in wrappers))


def parse_quantization(
    section: Any, duplicate: Any, path: Path, ignore: Collection[str], warnings: list[str]
) -> QuantizationConfig:
    """Return the declared quantisation from `quantization`, else from `quantization_config`.

    mlx-lm writes both, equal. A section of another tool has a `quant_method` and is refused.
    """
    name = "quantization" if section is not None else "quantization_config"
    if section is None:
        section = duplicate
        _refuse_foreign(section, path)
    elif duplicate is not None and duplicate != section:
        warnings.append("quantization_config differs from quantization: the latter was followed")
    if section is None or section is False:
        return QuantizationConfig(None)
    if not isinstance(section, dict):
        raise InputError(path, f"bad {name}: must be an object or null", f"found {show(section)}")
    default = _declared(section, name, path)
    modules = [k for k in section if k not in FORMAT_KEYS and f"{name}.{k}" not in ignore]
    overrides = {key: _override(key, section[key], default, name, path) for key in modules}
    return QuantizationConfig(default, overrides)


def _refuse_foreign(section: Any, path: Path) -> None:
    method = section.get("quant_method") if isinstance(section, dict) else None
    if method is not None:
        what = (
            f"quantisation method {show(method, 40)} is not supported yet, MLX's own modes are read"
        )
        raise InputError(path, what, "quantization_config.quant_method")


def _override(module: str, value: Any, default: Declared, name: str, path: Path) -> Declared | None:
    if value is False or value is None:
        return None
    if value is True:
        return default
    where = f"{name}.{module}"
    if not isinstance(value, dict):
        what = f"bad quantization of {show(module, 60)}: must be an object, true or false; pass "
        way = f"--ignore-config {name}.{show(module, 60)[1:-1]} if it changes nothing"
        raise InputError(path, what + way, f"found {show(value, 40)}")
    unknown = [key for key in value if key not in FORMAT_KEYS]
    if unknown:
        what = f"unknown key {show(unknown[0], 40)} in the quantization of {show(module, 60)}"
        raise InputError(path, what)
    return _declared(value, where, path)


def _declared(raw: dict[str, Any], where: str, path: Path) -> Declared:
    """Read one declaration. What a mode has no choice in may be left out, as in mlx-lm."""
    mode = AFFINE if raw.get("mode") is None else raw["mode"]
    if mode not in MODES:
        what = f"quantisation mode {show(mode, 40)} is not supported yet, "
        raise InputError(path, what + f"{', '.join(map(show, MODES))} are read", where)
    bits = _one_of(raw, "bits", BITS, where, path)
    if mode == AFFINE:
        return Declared(bits, _one_of(raw, "group_size", GROUP_SIZES, where, path), mode)
    usual_bits, usual_size = MINIFLOATS[mode]
    sizes = tuple(sorted({usual_size, *GROUP_SIZES}))
    size = _one_of(raw, "group_size", sizes, where, path)
    return Declared(bits or usual_bits, size or usual_size, mode)


def _one_of(
    raw: dict[str, Any], key: str, allowed: tuple[int, ...], where: str, path: Path
) -> int | None:
    value = raw.get(key)
    if value is None:
        return None
    if type(value) is not int or value not in allowed:
        listed = ", ".join(map(str, allowed))
        raise InputError(path, f"bad quantization: {key}={show(value, 40)}, one of {listed}", where)
    return value
