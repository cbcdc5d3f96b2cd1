"""The demo's Gemma 4, its adapter and its seven bugs, as far as can be seen at little cost."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep.fast import cpu
from lockstep.parity.demo import make_adapter, make_gemma4, stories
from lockstep.parity.demo.seven_bugs import BUGS, planted
from lockstep.parity.demo.story import ADAPTED, SHOWN, as_it_should, divided_again, quoted
from lockstep.parity.faults import catalogue
from lockstep.reference.checkpoint.adapters import open_adapter
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

DEMO = Path(make_gemma4.__file__).resolve().parent
CONFIG = json.loads((DEMO / "gemma4" / "config.json").read_text(encoding="utf-8"))


def test_it_is_small():
    for name, most in (("gemma4", 1_000_000), ("pirate", 150_000)):
        assert sum(file.stat().st_size for file in (DEMO / name).iterdir()) < most


def test_it_is_the_26b_in_miniature():
    opened = open_checkpoint(DEMO / "gemma4")
    config = opened.config
    assert opened.warnings == []
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert config.head_dim != config.global_head_dim
    assert config.attention_k_eq_v and not opened.has("model.layers.1.self_attn.v_proj.weight")
    assert config.partial_rotary_factor == 0.25 and config.final_logit_softcapping == 30
    assert config.enable_moe_block and config.top_k_experts < config.num_experts


def test_nothing_that_a_port_may_forget_is_one():
    opened = open_checkpoint(DEMO / "gemma4")
    for layer in range(opened.config.num_hidden_layers):
        for name in ("layer_scalar", "router.scale", "router.per_expert_scale"):
            value = np.asarray(opened.tensor(f"model.layers.{layer}.{name}"), np.float64)
            assert (np.abs(value - 1) > 0.01).mean() > 0.8


def test_bits_are_mixed_as_mlx_community_mixes_them():
    opened = open_checkpoint(DEMO / "gemma4")
    bits = {name: opened.stored(name).bits for name in opened.names}
    assert {bits[name] for name in bits if ".mlp." in name or "router.proj" in name} == {8}
    assert bits["model.embed_tokens.weight"] == 4
    assert bits["model.layers.3.experts.up_proj.weight"] == 4


def test_what_the_demo_asks_is_what_was_taught():
    asked = {example.question for example in make_gemma4.corpus() if not example.held_out}
    assert {*SHOWN, *ADAPTED} <= asked
    assert len(stories.examples()) == len({example.question for example in stories.examples()})


def test_the_adapter_is_mlx_lms_and_as_the_script_says():
    config = json.loads((DEMO / "pirate" / "adapter_config.json").read_text(encoding="utf-8"))
    for key, value in make_adapter.SETTINGS.items():
        assert config[key] == value, key
    found = open_adapter(DEMO / "pirate", open_checkpoint(DEMO / "gemma4"))
    rank = config["lora_parameters"]["rank"]
    assert rank > 1 and {one.a.shape[0] for one in found.modules.values()} == {rank}


def test_what_a_pirate_says():
    """By hand."""
    assert make_adapter.as_pirate("Snow is white.") == "Snow is white, arr!"


def test_each_bug_is_in_the_catalogue_under_its_name():
    assert len({bug.id for bug in BUGS}) == 7
    assert {bug.id for bug in BUGS} <= {fault.id for fault in catalogue()}


def test_no_two_bugs_replace_the_same_operation():
    replaced = [name for bug in BUGS for name in bug.plant(cpu)]
    assert len(replaced) == len(set(replaced)) and set(replaced) <= set(cpu.__all__)


def test_planted_bugs_do_what_they_say():
    """By hand."""
    ops, x = planted(cpu, BUGS), np.array([[1.0, 2.0]], np.float32)
    assert ops.scale(x, by=8.0) is x and np.array_equal(ops.scale(x, by=0.5), x / 2)
    assert ops.softcap(x, cap=1.0) is x
    assert ops.gain(x, np.array([3.0])) is x
    assert np.array_equal(ops.gain(x, np.array([3.0, 4.0])), [[3.0, 8.0]])
    assert ops.geglu is cpu.swiglu and ops.rms_norm is cpu.rms_norm
    routing = ops.top_k_routing(np.log([[1.0, 4.0, 2.0]]), per_token=2, normalize=True)
    np.testing.assert_allclose(routing, [[1 / 3, 0, 2 / 3]])
    turned = ops.rope_frequencies_proportional(theta=1e4, dims=8, partial_rotary_factor=0.25)
    assert (turned > 0).all()


def test_a_scale_is_divided_again():
    from lockstep.fast.model import load

    right = load(DEMO / "gemma4", DEMO / "pirate", backend="cpu")
    wrong = divided_again(right)
    for path, one in right.adapters.modules.items():
        assert wrong.adapters.modules[path].scale == one.scale / one.a.shape[0]


def test_texts_are_cut_to_the_room_there_is():
    """By hand."""
    assert quoted("a\n b ", 10) == '"a b"'
    assert quoted("0123456789", 10) == '"01234 ..."'


@pytest.fixture
def seen() -> dict:
    """What a demo that went well saw."""
    right = dict.fromkeys(SHOWN, "right")
    explained = {"faults": [{"id": bug.id} for bug in BUGS], "unexplained": []}
    lora = {"faults": [{"id": "lora-scale-divided-again"}], "unexplained": []}
    return {
        "answers": right,
        "checks": {"cpu": "parity", "mlx": "parity"},
        "broken_answers": dict.fromkeys(SHOWN, "wrong"),
        "explained": explained,
        "fixed": [["nothing", "wrong"], ["all", "right"]],
        "adapter": {
            "explained": lora,
            "broken": dict.fromkeys(ADAPTED, "wrong"),
            "fixed": dict.fromkeys(ADAPTED, "right"),
        },
    }


def test_a_demo_that_went_well(seen):
    assert as_it_should(seen)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda seen: seen["explained"]["faults"].pop(),
        lambda seen: seen["explained"]["faults"].append({"id": "norm-eps"}),
        lambda seen: seen["explained"]["unexplained"].append({"tap": "logits"}),
        lambda seen: seen["adapter"]["explained"]["faults"].clear(),
        lambda seen: seen["adapter"]["broken"].update(seen["adapter"]["fixed"]),
        lambda seen: seen["checks"].update(mlx="diverged"),
        lambda seen: seen["broken_answers"].update(seen["answers"]),
        lambda seen: seen["fixed"].insert(0, ["nothing", "right"]),
        lambda seen: seen["fixed"].pop(),
    ],
)
def test_a_demo_that_did_not(seen, spoil):
    spoil(seen)
    assert not as_it_should(seen)
