"""The rope keys of config.json, in every spelling: what comes out, what is refused. By hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_config import read_rope
from lockstep.reference.checkpoint.rope_scaling import (
    OPTIONS,
    RopeScaling,
    context_length,
    steady_length,
)

Refuses = Callable[[Callable[[], object], str], str]
ORIGINAL = "original_max_position_embeddings"
SHORT, LONG = [1, 1.5, 2, 3], [1, 2, 4, 8.5]
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4},
    "dynamic": {"factor": 4},
    "llama3": {"factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0, ORIGINAL: 32},
    "yarn": {"factor": 4.0, ORIGINAL: 16},
    "longrope": {"short_factor": SHORT, "long_factor": LONG, ORIGINAL: 16},
}
EXPECTED = {
    "linear": RopeScaling("linear", factor=4.0),
    "dynamic": RopeScaling("dynamic", factor=4.0, original_max_position_embeddings=64),
    "llama3": RopeScaling("llama3", 8.0, 32, low_freq_factor=1.0, high_freq_factor=4.0),
    "yarn": RopeScaling(
        "yarn", 4.0, 16, beta_fast=32.0, beta_slow=1.0, truncate=True,
        attention_factor=0.1 * math.log(4) + 1,
    ),
    "longrope": RopeScaling(
        "longrope", 4.0, 16, short_factor=(1.0, 1.5, 2.0, 3.0), long_factor=(1.0, 2.0, 4.0, 8.5),
        attention_factor=math.sqrt(1 + math.log(4) / math.log(16)),
    ),
}  # fmt: skip


def read(
    raw: dict[str, Any], *, dims: int = 8, theta: float | None = None, ignore: Any = ()
) -> tuple[float, RopeScaling, list[str]]:
    """Parse the rope keys of a config that has 64 positions."""
    warnings: list[str] = []
    fields = Fields({"max_position_embeddings": 64} | raw, Path("config.json"))
    return *read_rope(fields, ignore, warnings, dims=dims, theta=theta), warnings


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_is_the_same(kind: str) -> None:
    own, expected = KINDS[kind], (1e4, EXPECTED[kind], [])
    for name in ("rope_type", "type"):
        assert read({"rope_theta": 1e4, "rope_scaling": {name: kind} | own}) == expected
        inner = {name: kind, "rope_theta": 10_000} | own
        assert read({"rope_parameters": inner}) == expected
        assert read({"rope_parameters": inner, "rope_scaling": None}) == expected
    both = {"rope_type": kind, "type": kind} | own
    twice = {"rope_theta": 1e4, "rope_scaling": both, "rope_parameters": both}
    assert read(twice) == expected


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", [{}, {"type": "default"}, {"rope_type": None}, {"type": "none"}])
def test_no_scaling(key: str, kind: dict[str, Any]) -> None:
    assert read({"rope_theta": 1e4, key: kind}) == (1e4, RopeScaling(), [])


def test_theta_where_the_config_has_none() -> None:
    assert read({}, theta=1e4) == (1e4, RopeScaling(), [])
    assert read({"rope_theta": 5e5}, theta=1e4)[0] == 5e5


def test_the_original_length_may_stand_at_the_top() -> None:
    """Phi's spelling."""
    inner = {key: value for key, value in KINDS["longrope"].items() if key != ORIGINAL}
    raw = {"rope_theta": 1e4, ORIGINAL: 16, "rope_scaling": {"type": "longrope"} | inner}
    assert read(raw)[1] == EXPECTED["longrope"]
    inner[ORIGINAL] = 16
    assert read(raw)[1] == EXPECTED["longrope"]


YARN_FACTORS: list[tuple[dict[str, Any], float, int]] = [
    ({}, 0.1 * math.log(4) + 1, 0),
    ({"factor": 1}, 1.0, 0),
    ({"attention_factor": 1.25}, 1.25, 0),
    ({"attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.25, 0),
    ({"mscale": 2, "mscale_all_dim": 0.5}, (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1), 0),
    ({"mscale": 2}, 0.1 * math.log(4) + 1, 1),
    ({"mscale_all_dim": 2}, 0.1 * math.log(4) + 1, 1),
    ({"mscale": 2, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1, 1),
    ({"mscale": 0, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1, 0),
]


@pytest.mark.parametrize(("more", "expected", "warned"), YARN_FACTORS)
def test_attention_factor_of_yarn(more: dict[str, Any], expected: float, warned: int) -> None:
    inner = {"type": "yarn"} | KINDS["yarn"] | more
    _, scaling, warnings = read({"rope_theta": 1e4, "rope_scaling": inner})
    assert math.isclose(scaling.attention_factor, expected, rel_tol=1e-15)
    assert len(warnings) == warned


def test_other_numbers_of_yarn() -> None:
    more = {"beta_fast": 16, "beta_slow": 2.0, "truncate": False}
    inner = {"type": "yarn"} | KINDS["yarn"] | more
    scaling = read({"rope_theta": 1e4, "rope_scaling": inner})[1]
    assert (scaling.beta_fast, scaling.beta_slow, scaling.truncate) == (16.0, 2.0, False)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, math.sqrt(1 + math.log(4) / math.log(16))),  # 64 positions of 16
        ({"factor": 9}, math.sqrt(1 + math.log(9) / math.log(16))),
        ({"factor": 1}, 1.0),
        ({ORIGINAL: 100}, 1.0),
        ({"attention_factor": 1.5}, 1.5),
    ],
)
def test_attention_factor_of_longrope(more: dict[str, Any], expected: float) -> None:
    inner = {"type": "longrope"} | KINDS["longrope"] | more
    scaling = read({"rope_theta": 1e4, "rope_scaling": inner})[1]
    assert math.isclose(scaling.attention_factor, expected, rel_tol=1e-15)


def changed(kind: str, **changes: Any) -> dict[str, Any]:
    """Return the keys of a kind with some changed, or gone where they are None."""
    inner = {"rope_theta": 1e4, "type": kind} | KINDS[kind] | changes
    return {"rope_parameters": {key: value for key, value in inner.items() if value is not None}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": (changed("linear", type="su"), "'rope_parameters.type' must be one of default"),
    "kind is no text": (changed("linear", type=4), "must be one of default, linear, dynamic, lla"),
    "two kinds": (changed("yarn", rope_type="linear"), "'rope_parameters.type' must be what rope_"),
    "two scalings": (
        changed("yarn") | {"rope_scaling": {"type": "linear", "factor": 2}},
        "rope_parameters and rope_scaling ask for two different scalings; keep one of them",
    ),
    "plain and scaled": (
        {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"type": "linear", "factor": 2}},
        "rope_parameters and rope_scaling ask for two different scalings; keep one of them",
    ),
    "two thetas": (changed("linear") | {"rope_theta": 5e5}, "given twice, as 10000 and 500000; ke"),
    "no theta": ({"rope_scaling": {"type": "linear", "factor": 2}}, "'rope_theta' must be a numbe"),
    "not an object": ({"rope_scaling": "linear"}, "'rope_scaling' must be an object or null"),
    "leftover": (changed("linear", alpha=1000), "unknown config key 'rope_parameters.alpha'"),
    "key of another kind": (changed("linear", beta_fast=32), "'rope_parameters.beta_fast'"),
    "partial": (changed("linear", partial_rotary_factor=0.5), "partial_rotary_factor'"),
    "factor below 1": (changed("linear", factor=0.5), "'rope_parameters.factor' must be a number "),
    "no factor": (changed("dynamic", factor=None), "(found nothing)"),
    "no low": (changed("llama3", low_freq_factor=None), "'rope_parameters.low_freq_factor' must b"),
    "low is high": (changed("llama3", low_freq_factor=4), "must be above low_freq_factor, 4"),
    "llama3 without length": (changed("llama3", **{ORIGINAL: None}), f"{ORIGINAL}' must be a posi"),
    "beta 0": (changed("yarn", beta_slow=0), "'rope_parameters.beta_slow' must be a number from"),
    "truncate 1": (changed("yarn", truncate=1), "'rope_parameters.truncate' must be true or false"),
    "negative attention": (changed("yarn", attention_factor=-1), "attention_factor' must be a num"),
    "yarn to the base 1": (changed("yarn", rope_theta=1), "yarn divides by its logarithm"),
    "two lengths": (changed("yarn") | {ORIGINAL: 17}, "must be 17, as at the top level (found 16)"),
    "length 1": (changed("longrope", **{ORIGINAL: 1}), "must be an integer from 2"),
    "no divisors": (changed("longrope", long_factor=None), "'rope_parameters.long_factor' must be"),
    "divisor 0": (changed("longrope", short_factor=[0, 1, 1, 1]), "must hold numbers above 0, up "),
    "divisor true": (changed("longrope", short_factor=[True] * 4), "must be a list of numbers"),
    "too few": (changed("longrope", short_factor=[1, 1]), "short_factor holds 2 numbers, but head"),
    "too many": (changed("longrope", long_factor=[1] * 5), "long_factor holds 5 numbers, but head"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, refuses: Refuses) -> None:
    raw, core = REFUSED[case]
    refuses(lambda: read(raw), core)


def test_heads_that_cannot_be_turned(refuses: Refuses) -> None:
    refuses(
        lambda: read({"rope_theta": 1e4}, dims=7), "head_dim=7 is odd: rotary embedding needs p"
    )
    refuses(
        lambda: read(changed("dynamic"), dims=2), "head_dim=2, but dynamic rope needs at least 4"
    )


def test_a_key_may_be_ignored_on_request() -> None:
    raw = changed("linear", alpha=1000)
    assert read(raw, ignore=("rope_parameters.alpha",))[1] == EXPECTED["linear"]


def test_how_long_a_text_may_be() -> None:
    """By hand: 64 positions, stretched four times; the 64 of yarn may be those after stretching."""
    lengths = {"default": 64, "linear": 256, "dynamic": 256, "llama3": 64, "longrope": 64}
    for kind, expected in lengths.items():
        scaling = EXPECTED.get(kind, RopeScaling())
        config = SimpleNamespace(max_position_embeddings=64, rope_scaling=scaling)
        assert context_length(config) == expected
    for announced, expected in ((16, 64), (64, 64), (100, 100)):
        config = SimpleNamespace(max_position_embeddings=announced, rope_scaling=EXPECTED["yarn"])
        assert context_length(config) == expected
    assert context_length(SimpleNamespace(max_position_embeddings=64)) == 64


def test_up_to_where_a_text_may_be_read_in_parts() -> None:
    """By hand: two kinds turn by the length of the text, beyond the original one."""
    for kind in ("default", "linear", "dynamic", "llama3", "longrope", "yarn"):
        scaling = EXPECTED.get(kind, RopeScaling())
        found = steady_length(SimpleNamespace(rope_scaling=scaling))
        original = scaling.original_max_position_embeddings
        assert found == (original if kind in ("dynamic", "longrope") else None)
        assert kind not in ("dynamic", "longrope") or found
    assert steady_length(SimpleNamespace()) is None


def test_each_kind_asks_its_own_operation() -> None:
    """By law: the numbers of a kind are exactly the keywords that its operation wants."""
    for kind, scaling in EXPECTED.items():
        seen: dict[str, Any] = {}

        class Ops:
            def __getattr__(self, name: str) -> Callable[..., None]:
                return lambda *rows, **options: seen.update(name=name, rows=rows, options=options)  # noqa: B023

        scaling.frequencies(Ops(), theta=5.0, dims=8, lengths="lengths")
        assert seen["name"] == f"rope_frequencies_{kind}"
        assert seen["rows"] == (("lengths",) if kind in ("dynamic", "longrope") else ())
        assert set(seen["options"]) == {"theta", "dims", *OPTIONS[kind]}
        assert None not in seen["options"].values()


@given(
    key=st.sampled_from(
        ["type", "rope_type", "factor", ORIGINAL, "low_freq_factor", "high_freq_factor", "mscale",
         "mscale_all_dim", "attention_factor", "beta_fast", "truncate", "long_factor"]
    ),
    kind=st.sampled_from([*KINDS]),
    value=st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.lists(st.floats(allow_nan=False), max_size=5) | st.sampled_from([*KINDS]),
)  # fmt: skip
def test_any_value_is_taken_or_refused_in_one_line(key: str, kind: str, value: Any) -> None:
    raw = {"rope_theta": 1e4, "rope_scaling": {"type": kind} | KINDS[kind] | {key: value}}
    try:
        _, scaling, _ = read(json.loads(json.dumps(raw)))
    except InputError as error:
        assert str(error).isprintable()
    else:
        assert math.isfinite(scaling.attention_factor) and scaling.attention_factor >= 0
        assert scaling.factor is None or scaling.factor >= 1
