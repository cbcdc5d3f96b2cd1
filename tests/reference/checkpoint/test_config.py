"""config.json: what passes, and C01 to C15 of what does not. By hand."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.architectures.qwen3 import Qwen3Config
from lockstep.reference.checkpoint.config import ParsedConfig, read_config
from lockstep.reference.checkpoint.config_keys import IGNORED
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import RopeScaling

Refuses = Callable[[Callable[[], object], str], str]
GONE = object()

# What the tiny file of conftest.py must come out as.
EXPECTED = Qwen3Config(
    vocab_size=48,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rms_norm_eps=1e-06,
    rope_theta=1e6,
    rope_scaling=RopeScaling(),
    tie_word_embeddings=False,
    attention_bias=False,
    max_position_embeddings=128,
    sliding_window=None,
    layer_types=("full_attention", "full_attention"),
)
PARAMETERS = {"rope_theta": 1000000.0, "rope_type": "default"}
SLIDING = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.fixture
def read(model: Any) -> Callable[..., ParsedConfig]:
    """Return a function that reads the tiny config with some keys changed or GONE."""

    def call(ignore: tuple[str, ...] = (), **changes: Any) -> ParsedConfig:
        merged = {**model.config, **changes}
        model.config = {key: value for key, value in merged.items() if value is not GONE}
        return read_config(model.save_config(), ignore=frozenset(ignore))

    return call


Read = Callable[..., ParsedConfig]


def test_a_file_as_on_the_hub(read: Read) -> None:
    parsed = read()
    assert parsed.config == EXPECTED
    assert parsed.warnings == []
    assert parsed.eos_token_id == 2


def test_a_file_as_transformers_5_saves_it(read: Read) -> None:
    parsed = read(
        rope_theta=GONE,
        rope_scaling=GONE,
        torch_dtype=GONE,
        dtype="bfloat16",
        rope_parameters=PARAMETERS,
        layer_types=["full_attention"] * 2,
        max_window_layers=28,
        pad_token_id=None,
    )
    assert parsed.config == EXPECTED
    assert parsed.warnings == []


def test_a_file_as_mlx_lm_converts_it(read: Read) -> None:
    section = {"group_size": 64, "bits": 4, "mode": "affine", "model.layers.0.mlp": {"bits": 6}}
    parsed = read(quantization=section, quantization_config=section)
    assert parsed.config == EXPECTED
    assert parsed.quantization == parsed.quantization_config == section


# id: what is changed, and the core of the message.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "C02 missing": ({"num_hidden_layers": GONE}, "must be a positive integer from 1 to 10000 (fou"),
    "C02 null": ({"hidden_size": None}, "field 'hidden_size' must be a positive integer"),
    "C02 string": ({"num_hidden_layers": "2"}, "(found '2')"),
    "C02 float": ({"num_hidden_layers": 2.0}, "(found 2.0)"),
    "C02 true": ({"num_hidden_layers": True}, "(found true)"),
    "C02 list": ({"num_hidden_layers": [2]}, "(found [2])"),
    "C02 no heads": ({"num_key_value_heads": None}, "field 'num_key_value_heads' must be"),
    "C02 no head_dim": ({"head_dim": GONE}, "field 'head_dim' must be an integer from 2"),
    "C02 no tie": ({"tie_word_embeddings": GONE}, "field 'tie_word_embeddings' must be true or"),
    "C02 tie 1": ({"tie_word_embeddings": 1}, "must be true or false (found 1)"),
    "C02 bias string": ({"attention_bias": "no"}, "field 'attention_bias' must be true or false"),
    "C03 zero": ({"num_hidden_layers": 0}, "(found 0)"),
    "C03 negative": ({"vocab_size": -1}, "(found -1)"),
    "C03 2**31": ({"hidden_size": 2**31}, "must be a positive integer from 1 to 1048576"),
    "C03 2**63": ({"num_attention_heads": 2**63}, "must be a positive integer from 1 to 65536"),
    "C05 heads do not divide": (
        {"num_key_value_heads": 3},
        "num_attention_heads=4 is not a multiple of num_key_value_heads=3",
    ),
    "C05 more kv heads": ({"num_key_value_heads": 8}, "num_attention_heads=4 is not a multiple"),
    "C05 no kv heads": ({"num_key_value_heads": 0}, "(found 0)"),
    "C05 odd head": ({"head_dim": 33}, "head_dim=33 is odd: rotary embedding needs pairs"),
    "C05 partial": ({"partial_rotary_factor": 0.5}, "unknown config key 'partial_rotary_factor'"),
    "C06 theta 0": ({"rope_theta": 0}, "field 'rope_theta' must be a number from 1 to 1e+12"),
    "C06 theta negative": ({"rope_theta": -1e6}, "(found -1000000.0)"),
    "C06 theta string": ({"rope_theta": "1e6"}, "(found '1e6')"),
    "C06 theta true": ({"rope_theta": True}, "(found true)"),
    "C06 theta gone": ({"rope_theta": GONE}, "field 'rope_theta' must be a number, here or in"),
    "C06 theta twice": (
        {"rope_parameters": {"rope_theta": 10000.0}},
        "rope_theta is given twice, as 10000 and 1e+06; keep one of them",
    ),
    "C06 yarn without the length": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "field 'rope_scaling.original_max_position_embeddings' must be a positive integer",
    ),
    "C06 unknown kind": (
        {"rope_parameters": {**PARAMETERS, "rope_type": "mrope"}},
        "'rope_parameters.rope_type' must be one of default, linear, dynamic, llama3, yarn, longro",
    ),
    "C06 type is no text": ({"rope_scaling": {"type": [1]}}, "field 'rope_scaling.type' must be"),
    "C06 factor without type": (
        {"rope_scaling": {"factor": 2.0}},
        "unknown config key 'rope_scaling.factor'; pass --ignore-config rope_scaling.factor",
    ),
    "C06 list": ({"rope_scaling": [1]}, "field 'rope_scaling' must be an object or null"),
    "C07 negative": ({"rms_norm_eps": -1e-6}, "field 'rms_norm_eps' must be a number from 0 to 1"),
    "C07 huge": ({"rms_norm_eps": 1e38}, "field 'rms_norm_eps' must be a number from 0 to 1"),
    "C07 string": ({"rms_norm_eps": "1e-6"}, "(found '1e-6')"),
    "C08 class": ({"architectures": ["os.system"]}, "names an unsupported architecture"),
    "C08 two": ({"architectures": ["Qwen3ForCausalLM", "x"]}, "names an unsupported architecture"),
    "C08 text": ({"architectures": "Qwen3ForCausalLM"}, "names an unsupported architecture"),
    "C08 target": ({"_target_": "os.system"}, "unknown config key '_target_'"),
    "C08 pipelines": ({"custom_pipelines": {"x": {}}}, "unknown config key 'custom_pipelines'"),
    "C08 library": ({"parent_library": "os"}, "unknown config key 'parent_library'"),
    "C08 model file": ({"model_file": "evil.py"}, "unknown config key 'model_file'"),
    "C09 path": ({"base_model_name_or_path": "/etc/passwd"}, "unknown config key 'base_model_na"),
    "C12 too few": ({"layer_types": ["full_attention"]}, "must list 2 layers"),
    "C12 too many": ({"layer_types": ["full_attention"] * 3}, "must list 2 layers"),
    "C12 no list": ({"layer_types": "full_attention"}, "must list 2 layers"),
    "C12 unknown": ({"layer_types": ["full_attention", "ssm"]}, "field 'layer_types' may hold"),
    "C12 no text": ({"layer_types": [["full_attention"]] * 2}, "field 'layer_types' may hold"),
    "C12 no window": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "has sliding layers, but there is no sliding window",
    ),
    "C12 window 0": ({**SLIDING, "sliding_window": 0}, "field 'sliding_window' must be a positive"),
    "C12 window -1": ({**SLIDING, "sliding_window": -1}, "(found -1)"),
    "C12 window text": ({**SLIDING, "sliding_window": "8"}, "(found '8')"),
    "C12 first layer": ({**SLIDING, "max_window_layers": GONE}, "it says which layers slide"),
    "C12 first layer text": ({**SLIDING, "max_window_layers": "1"}, "field 'max_window_layers'"),
    "C12 use": ({"use_sliding_window": 1}, "field 'use_sliding_window' must be true or false"),
    "C13 gelu": ({"hidden_act": "gelu"}, "field 'hidden_act' must be 'silu' (found 'gelu')"),
    "C13 class": ({"hidden_act": "__class__"}, "field 'hidden_act' must be 'silu'"),
    "C13 long": ({"hidden_act": "x" * 10**5}, "field 'hidden_act' must be 'silu'"),
    "C13 list": ({"hidden_act": ["silu"]}, "field 'hidden_act' must be 'silu'"),
    "C13 missing": ({"hidden_act": GONE}, "field 'hidden_act' must be 'silu' (found nothing)"),
    "C15 dtype": ({"torch_dtype": "float8_x"}, "field 'torch_dtype' must be 'float64' or 'float3"),
    "C15 new key": ({"dtype": "int8"}, "field 'dtype' must be 'float64' or 'float32' or"),
    "C15 number": ({"torch_dtype": 16}, "(found 16)"),
    "C15 nested": ({"text_config": {"a": 1}}, "unknown config key 'text_config'"),
    "other model": ({"model_type": "falcon"}, "names an unsupported architecture, "),
    "other class": ({"model_type": "llama"}, "architecture, LlamaForCausalLM is read (found ['Qw"),
    "no model": ({"model_type": GONE}, "field 'model_type' names an unsupported architecture"),
    "model list": ({"model_type": ["qwen3"]}, "names an unsupported architecture"),
    "unknown": (
        {"attn_logit_softcapping": 50.0},
        "unknown config key 'attn_logit_softcapping'; pass --ignore-config attn_logit_softcapping",
    ),
    "unknown two": ({"b": 1, "a": 2, "c": 3}, "unknown config keys 'b', 'a' and 1 more; pass"),
    "unknown zero": ({"a": 0}, "unknown config key 'a'"),
    "unknown empty": ({"a": {}}, "unknown config key 'a'"),
    "unknown hostile": ({"\x1b[2J\n": 1}, "unknown config key '\\x1b[2J\\x0a'"),
    "unknown in rope": (
        {"rope_parameters": {**PARAMETERS, "beta_fast": 32}},
        "unknown config key 'rope_parameters.beta_fast'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, read: Read, refuses: Refuses) -> None:
    changes, core = REFUSED[case]
    line = refuses(lambda: read(**changes), core)
    assert "config.json: " in line


TEXTS: dict[str, tuple[bytes, str]] = {
    "C01 empty": (b"", "file is empty"),
    "C01 list": (b"[]", "config must be a JSON object, not []"),
    "C01 invalid": (b"{'a': 1}", "config is not valid JSON at byte 1"),
    "C01 deep": (b'{"text_config":' * 1000, "config is nested deeper than 16 levels"),
    "C01 twice": (b'{"vocab_size": 1, "vocab_size": 2}', "duplicate key 'vocab_size'"),
    "C01 NaN": (b'{"rms_norm_eps": NaN}', "NaN is not a JSON number"),
    "C01 mark": (b"\xef\xbb\xbf{}", "byte-order mark"),
    "C01 UTF-16": ("{}".encode("utf-16"), "config is not UTF-8 (byte 0)"),
    "C03 10**5000": (b'{"vocab_size": 1%b}' % (b"0" * 5000), "integer of 5001 digits is out of"),
    "C06 1e999": (b'{"rope_theta": 1e999}', "number '1e999' is out of range"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_refused_text(case: str, tmp_path: Path, refuses: Refuses) -> None:
    data, core = TEXTS[case]
    path = tmp_path / "config.json"
    path.write_bytes(data)
    refuses(lambda: read_config(path, ignore=()), core)


def test_c01_a_large_file(tmp_path: Path, refuses: Refuses) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10**9)
    core = "file of 1000000000 bytes is over the limit of 1048576"
    refuses(lambda: read_config(path, ignore=()), core)


def test_c07_eps_0_is_mentioned(read: Read) -> None:
    parsed = read(rms_norm_eps=0)
    assert parsed.config.rms_norm_eps == 0
    assert parsed.warnings == ["rms_norm_eps is 0: a row of zeros gives NaN"]


def test_c08_names_of_code_are_never_run(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)

    def never(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(importlib, "import_module", never)
    parsed = read(auto_map={"AutoModel": "antigravity.Model"}, trust_remote_code=True)
    assert parsed.config == EXPECTED
    assert "antigravity" not in set(sys.modules) - before


def test_c09_paths_are_never_opened(read: Read) -> None:
    assert read(_name_or_path="/no/such/path").config == EXPECTED


def test_null_and_false_only_warn(read: Read) -> None:
    parsed = read(new_thing=None, other_thing=False)
    assert parsed.config == EXPECTED
    text = "unknown config keys ignored, they are null or false: 'new_thing', 'other_thing'"
    assert parsed.warnings == [text]


def test_ignore_config(read: Read, refuses: Refuses) -> None:
    parsed = read(("new_thing",), new_thing=3)
    assert parsed.config == EXPECTED
    assert parsed.warnings == ["config keys ignored on request: 'new_thing'"]
    refuses(lambda: read(("new_thing",), other_thing=3), "unknown config key 'other_thing'")


def test_ignore_config_of_a_nested_key(read: Read) -> None:
    parsed = read(("rope_parameters.beta",), rope_parameters={**PARAMETERS, "beta": 1})
    assert parsed.config == EXPECTED


def test_what_is_used_cannot_be_ignored(read: Read, refuses: Refuses) -> None:
    refuses(lambda: read(("hidden_size",)), "field 'hidden_size' is used, it cannot be ignored")


def test_each_ignored_key_has_a_reason(read: Read) -> None:
    assert all(len(reason) > 10 for reason in IGNORED.values())
    parsed = read(**dict.fromkeys(IGNORED, 1))
    assert (parsed.config, parsed.warnings) == (EXPECTED, [])


FULL, SLIDES = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("changes", "window", "kinds"),
    [
        ({}, None, (FULL, FULL)),
        ({**SLIDING}, 8, (FULL, SLIDES)),
        ({**SLIDING, "max_window_layers": 0}, 8, (SLIDES, SLIDES)),
        ({**SLIDING, "max_window_layers": 2}, None, (FULL, FULL)),
        ({**SLIDING, "use_sliding_window": False}, None, (FULL, FULL)),
        ({**SLIDING, "use_sliding_window": GONE}, None, (FULL, FULL)),
        ({**SLIDING, "sliding_window": None}, None, (FULL, FULL)),
        ({**SLIDING, "layer_types": [FULL, SLIDES]}, 8, (FULL, SLIDES)),
        ({**SLIDING, "layer_types": [FULL, FULL]}, None, (FULL, FULL)),
        ({**SLIDING, "layer_types": [SLIDES, FULL]}, 8, (SLIDES, FULL)),
    ],
)
def test_which_layers_slide(
    changes: dict[str, Any], window: int | None, kinds: tuple[str, ...], read: Read
) -> None:
    parsed = read(**changes)
    assert (parsed.config.sliding_window, parsed.config.layer_types) == (window, kinds)
    by_rule = changes.get("layer_types") in (None, [FULL, SLIDES])
    assert bool(parsed.warnings) is not by_rule


@given(
    key=st.sampled_from([*EXPECTED.__dataclass_fields__, "rope_scaling", "rope_parameters"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(max_size=9), v, max_size=2),
        max_leaves=4,
    ),
)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(
    key: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-config.json"
    path.unlink(missing_ok=True)
    raw = {**BASE, key: value}
    path.write_text(json.dumps(raw), encoding="utf-8")
    try:
        config = read_config(path, ignore=()).config
    except InputError as error:
        assert str(error).isprintable()
    else:
        assert config.num_attention_heads % config.num_key_value_heads == 0
        assert config.head_dim % 2 == 0 and config.rope_theta >= 1
        assert len(config.layer_types) == config.num_hidden_layers


BASE: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    **{name: getattr(EXPECTED, name) for name in EXPECTED.__dataclass_fields__},
    "rope_scaling": None,
}
