"""What a port's config.json drops or has otherwise. By hand; equal configs by law."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.parity.before.canonical import equal
from lockstep.parity.before.configs import ConfigFinding, compare_configs
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.builders import checkpoint

WITNESSES = Path(__file__).parents[2] / "witnesses"
CONFIGS = sorted(path.parent for path in WITNESSES.glob("*/*/config.json"))
CONFIGS = [path for path in CONFIGS if path.parent.name != "adapters"]
GEMMA, LLAMA, SPARSE = "gemma4/sparse", "llama/biased_llama3", "qwen3_moe/separate"
Config = dict[str, Any]
Edit = Callable[[Config], object]


def found(model: str | Path, edit: Edit, folder: Path) -> dict[str, ConfigFinding]:
    config = json.loads((WITNESSES / model / "config.json").read_text(encoding="utf-8"))
    edit(config)
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    findings = compare_configs(open_checkpoint(WITNESSES / model), path)
    assert len({one.key for one in findings}) == len(findings)
    return {one.key: one for one in findings}


@pytest.mark.parametrize("model", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_equal_configs_have_no_finding(model, tmp_path):
    assert found(model, lambda config: None, tmp_path) == {}


def test_of_a_folder_its_config_is_compared(tmp_path):
    checkpoint = open_checkpoint(WITNESSES / LLAMA)
    found(LLAMA, lambda config: config.update(rms_norm_eps=0.5), tmp_path)
    assert [one.key for one in compare_configs(checkpoint, tmp_path)] == ["rms_norm_eps"]
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        compare_configs(checkpoint, WITNESSES)


def only_the_text_model(config: Config) -> None:
    inner = config.pop("text_config")
    config.clear()
    config.update(inner)


def old_rope(config: Config) -> None:
    """As transformers before 5 wrote it."""
    section = config.pop("rope_parameters")
    config["rope_theta"] = section.pop("rope_theta")
    config["rope_scaling"] = {"type": section.pop("rope_type"), **section}


def without_defaults(config: Config) -> None:
    for key in ("tie_word_embeddings", "pretraining_tp", "use_cache", "pad_token_id"):
        del config[key]


def other_spellings(config: Config) -> None:
    config["num_local_experts"] = config.pop("num_experts")
    config["rms_norm_eps"] = float(config["rms_norm_eps"])
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    config["dtype"] = "float16"
    config["transformers_version"] = "4.0"


@pytest.mark.parametrize(
    ("model", "edit"),
    [(GEMMA, only_the_text_model), (LLAMA, old_rope), (LLAMA, without_defaults),
     (SPARSE, other_spellings)],
)  # fmt: skip
def test_other_forms_of_the_same_are_the_same(model, edit, tmp_path):
    assert found(model, edit, tmp_path) == {}


def without(*keys: str) -> Edit:
    def edit(config: Config) -> None:
        section = config.get("text_config", config)
        for key in keys:
            del section[key]

    return edit


def having(**values: Any) -> Edit:
    return lambda config: config.get("text_config", config).update(values)


DROPPED = [
    (GEMMA, "final_logit_softcapping", "final_logit_softcapping", "final-softcap-missing", None),
    (GEMMA, "head_dim", "head_dim", "attn-head-dim-derived", 8),
    (GEMMA, "layer_types", "layer_types", "mask-layer-types-ignored", ["full_attention"] * 2),
    (GEMMA, "num_key_value_heads", "num_key_value_heads", None, 4),
    (GEMMA, "top_k_experts", "num_experts_per_tok", None, 8),
    (LLAMA, "rms_norm_eps", "rms_norm_eps", "rms-eps-wrong", 1e-6),
    (LLAMA, "attention_bias", "attention_bias", "qkv-bias-dropped", False),
    (LLAMA, "mlp_bias", "mlp_bias", "o-proj-mlp-bias-dropped", False),
    (SPARSE, "norm_topk_prob", "norm_topk_prob", "moe-renorm-missing", False),
]


@pytest.mark.parametrize(("model", "key", "named", "fault", "taken"), DROPPED)
def test_a_dropped_key_is_found_if_its_default_is_another(
    model, key, named, fault, taken, tmp_path
):
    findings = found(model, without(key), tmp_path)
    one = findings[named]
    assert (one.kind, one.fault, one.theirs, one.taken) == ("dropped", fault, None, taken)
    assert findings.keys() <= {named, "global_head_dim", "num_global_key_value_heads"}
    assert named in one.fix


def test_dropped_sections_of_rope_are_named_one_by_one(tmp_path):
    findings = found(LLAMA, without("rope_parameters"), tmp_path)
    assert findings["rope_type"].fault == "rope-llama3-scaling-missing"
    assert "rope_theta" not in findings  # 10000, which engines take
    findings = found(GEMMA, without("rope_parameters"), tmp_path)
    assert findings["rope_type[full_attention]"].fault == "rope-proportional-missing"
    assert findings["rope_theta[sliding_attention]"].fault == "rope-local-global-theta"
    assert findings["partial_rotary_factor[full_attention]"].fault == "rope-partial-ignored"


@pytest.mark.parametrize(
    ("model", "values", "key", "kind", "fault"),
    [
        (LLAMA, {"hidden_act": "gelu_new"}, "hidden_act", "other value", "act-silu-vs-gelu"),
        (GEMMA, {"hidden_activation": "gelu"}, "hidden_act", "other value", "gelu-erf-vs-tanh"),
        (GEMMA, {"sliding_window": 10}, "sliding_window", "other value", "mask-swa-off-by-one"),
        (GEMMA, {"sliding_window": 4}, "sliding_window", "other value", None),
        (LLAMA, {"rms_norm_eps": "1e-05"}, "rms_norm_eps", "other type", None),
        (LLAMA, {"mlp_bias": 1}, "mlp_bias", "other type", None),
        (LLAMA, {"rms_norm_eps": 1e-3}, "rms_norm_eps", "other value", "rms-eps-wrong"),
        (LLAMA, {"num_key_value_heads": 4}, "num_key_value_heads", "other value", None),
        (LLAMA, {"tie_word_embeddings": True}, "tie_word_embeddings", "other value",
         "tied-head-mishandled"),
        (GEMMA, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types",
         "other value", "mask-swa-parity-flipped"),
        (LLAMA, {"final_logit_softcapping": 30.0}, "final_logit_softcapping", "other value", None),
    ],
)  # fmt: skip
def test_another_value_is_told_with_what_it_does(model, values, key, kind, fault, tmp_path):
    one = found(model, having(**values), tmp_path)[key]
    assert (one.kind, one.fault) == (kind, fault)
    assert one.effect and one.theirs == next(iter(values.values()))


def test_theta_is_a_known_fault_only_where_it_is_the_default(tmp_path):
    folder = checkpoint(tmp_path / "model", rope_theta=1e6)
    theta = found(folder, without("rope_theta"), tmp_path)["rope_theta"]
    assert (theta.fault, theta.ours, theta.taken) == ("rope-theta-default", 1e6, 1e4)
    assert found(folder, having(rope_theta=5e5), tmp_path)["rope_theta"].fault is None


def test_a_window_that_no_layer_has_does_not_matter(tmp_path):
    folder = checkpoint(tmp_path / "model", sliding_window=8, use_sliding_window=False)
    assert found(folder, without("sliding_window"), tmp_path) == {}


def test_one_quantisation_for_all_modules(tmp_path):
    def edit(config: Config) -> None:
        for key in ("quantization", "quantization_config"):
            kept = ("bits", "group_size", "mode")
            config[key] = {name: config[key][name] for name in kept if name in config[key]}

    one = found("models/affine_mixed", edit, tmp_path)["quantization"]
    assert one.fault == "quant-bits-global"


def test_a_gguf_file_is_compared_by_what_it_says(tmp_path):
    model = open_checkpoint(WITNESSES / "gguf/qwen3_tied.gguf")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen3", "rms_norm_eps": 0.5}), encoding="utf-8")
    found = {one.key: one for one in compare_configs(model, path)}
    assert found["rms_norm_eps"].fault == "rms-eps-wrong"
    assert found["hidden_size"].kind == "dropped" and found["hidden_size"].taken is None


def test_a_finding_is_json_and_a_line(tmp_path):
    one = found(LLAMA, without("rms_norm_eps"), tmp_path)["rms_norm_eps"]
    assert json.loads(json.dumps(one.to_json()))["fault"] == "rms-eps-wrong"
    assert "rms-eps-wrong" in str(one) and "\n" not in str(one)


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1, "a": 2}', "null"])
def test_what_is_no_object_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        compare_configs(open_checkpoint(WITNESSES / LLAMA), tmp_path / "config.json")


@pytest.mark.parametrize("value", [[], {}, "x", {"full_attention": 3}, {"rope_type": ["a"]}, 7])
def test_nonsense_in_a_section_is_a_finding_and_no_crash(value, tmp_path):
    assert found(LLAMA, having(rope_parameters=value, head_dim=value), tmp_path)


def test_values_are_equal_as_json_means_them():
    assert equal(1, 1.0) and equal((1, 2), [1, 2]) and equal(None, None)
    assert not equal(1, True) and not equal("1", 1) and not equal(0, False) and not equal(None, 0)
