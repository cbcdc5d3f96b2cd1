"""What config.json says of quantisation. By hand, and C10."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.reference.checkpoint.quantization import (
    Declared,
    QuantizationConfig,
    parse_quantization,
    spellings,
)

Refuses = Callable[[Callable[[], object], str], str]
PATH = Path("config.json")
PLAIN = {"bits": 4, "group_size": 64}
MODULE = "model.layers.0.mlp.up_proj"


def parse(section: Any, duplicate: Any = None, ignore: tuple[str, ...] = ()) -> QuantizationConfig:
    return parse_quantization(section, duplicate, PATH, ignore, [])


def test_nothing_declared() -> None:
    assert parse(None).declared(MODULE) is None
    assert parse(False).declared(MODULE) is None


def test_the_default_holds_for_every_module() -> None:
    assert parse(PLAIN).declared(MODULE) == Declared(4, 64, "affine")
    assert parse({**PLAIN, "mode": "affine"}, PLAIN).declared(MODULE) == Declared(4, 64, "affine")
    assert parse({}).declared(MODULE) == Declared(None, None, "affine")


def test_the_second_section_alone_counts_too() -> None:
    assert parse(None, PLAIN).declared(MODULE) == Declared(4, 64, "affine")


def test_two_sections_that_differ() -> None:
    warnings: list[str] = []
    found = parse_quantization(PLAIN, {**PLAIN, "bits": 8}, PATH, (), warnings)
    assert found.declared(MODULE) == Declared(4, 64, "affine")
    assert warnings == ["quantization_config differs from quantization: the latter was followed"]


SPELLINGS = (
    "model.layers.0.mlp.up_proj",
    "layers.0.mlp.up_proj",
    "model.language_model.layers.0.mlp.up_proj",
    "language_model.model.layers.0.mlp.up_proj",
    "language_model.layers.0.mlp.up_proj",
)


@pytest.mark.parametrize("name", SPELLINGS)
def test_overrides_in_any_spelling(name: str) -> None:
    found = parse({**PLAIN, name: {"bits": 6, "group_size": 32}})
    assert found.declared(MODULE) == found.override(MODULE) == Declared(6, 32, "affine")
    assert found.declared("model.layers.1.mlp.up_proj") == Declared(4, 64, "affine")
    assert found.override("model.layers.1.mlp.up_proj") is None
    assert set(spellings(MODULE)) == set(SPELLINGS)


@pytest.mark.parametrize("value", [False, None])
def test_a_module_can_be_declared_plain(value: Any) -> None:
    found = parse({**PLAIN, MODULE: value})
    assert found.declared(MODULE) is None and found.override(MODULE) is None


def test_true_means_the_default() -> None:
    assert parse({**PLAIN, MODULE: True}).declared(MODULE) == Declared(4, 64, "affine")


MINIFLOATS = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


@pytest.mark.parametrize("mode", MINIFLOATS)
def test_modes_of_tiny_floats(mode: str) -> None:
    """What such a mode has no choice in may be left out."""
    bits, group_size = MINIFLOATS[mode]
    whole = Declared(bits, group_size, mode)
    assert parse({"bits": bits, "group_size": group_size, "mode": mode}).default == whole
    assert parse({"mode": mode}).default == whole
    found = parse({"mode": mode, MODULE: {"bits": 6, "group_size": 128}})
    assert found.declared(MODULE) == Declared(6, 128, "affine")
    found = parse({**PLAIN, MODULE: {"mode": mode}})
    assert found.declared(MODULE) == whole
    assert str(whole) == f"{bits} bits in groups of {group_size} by {mode}"


def test_a_mode_and_sizes_that_it_has_not() -> None:
    """It is kept as it was said: the shapes decide, and a warning tells both."""
    assert parse({**PLAIN, "mode": "nvfp4"}).default == Declared(4, 64, "nvfp4")


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "bits 0": ({"bits": 0}, None, "bad quantization: bits=0, one of 2, 3, 4, 5, 6, 8"),
    "bits 3.5": ({"bits": 3.5}, None, "bad quantization: bits=3.5"),
    "bits 64": ({"bits": 64}, None, "bad quantization: bits=64"),
    "bits 7": ({"bits": 7}, None, "bad quantization: bits=7"),
    "bits true": ({"bits": True}, None, "bad quantization: bits=true"),
    "bits text": ({"bits": "4"}, None, "bad quantization: bits='4'"),
    "group 0": ({"group_size": 0}, None, "group_size=0, one of 32, 64, 128"),
    "group -1": ({"group_size": -1}, None, "group_size=-1"),
    "group 16": ({"group_size": 16}, None, "group_size=16"),
    "group 16 by mxfp4": (
        {"group_size": 16, "mode": "mxfp4"},
        None,
        "=16, one of 32, 64, 128",
    ),
    "fp4": ({**PLAIN, "mode": "fp4"}, None, "mode 'fp4' is not supported yet, 'affine', 'mxfp4', "),
    "mxfp6": ({MODULE: {"mode": "mxfp6"}}, None, f"'nvfp4' are read (quantization.{MODULE})"),
    "mode list": ({"mode": ["affine"]}, None, "quantisation mode ['affine'] is not supported yet"),
    "global scale": ({MODULE: {"global_scale": True}}, None, "unknown key 'global_scale' in the"),
    "mode number": ({"mode": 4}, None, "quantisation mode 4 is not supported yet"),
    "module": ({MODULE: {"bits": 7}}, None, f"(quantization.{MODULE})"),
    "module text": ({MODULE: "4"}, None, f"bad quantization of '{MODULE}': must be an object"),
    "module key": ({MODULE: {"bit": 4}}, None, "unknown key 'bit' in the quantization of"),
    "scalar": ({"linear_class": "x"}, None, "pass --ignore-config quantization.linear_class"),
    "no object": (4, None, "bad quantization: must be an object or null (found 4)"),
    "second no object": (None, [4], "bad quantization_config: must be an object or null"),
    "awq": (None, {"quant_method": "awq", "bits": 4}, "method 'awq' is not supported yet"),
    "gptq": (None, {"quant_method": "gptq"}, "quantisation method 'gptq' is not supported yet"),
    "fp8": (None, {"quant_method": "fp8"}, "quantisation method 'fp8' is not supported yet"),
    "odd method": (None, {"quant_method": ["x"]}, "quantisation method ['x'] is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_c10_refused(case: str, refuses: Refuses) -> None:
    section, duplicate, core = REFUSED[case]
    refuses(lambda: parse(section, duplicate), core)


def test_an_entry_can_be_ignored() -> None:
    found = parse({**PLAIN, "linear_class": "x"}, None, ("quantization.linear_class",))
    assert found.overrides == {}
