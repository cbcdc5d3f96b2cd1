"""Ports that dump queries, keys and values as one product, or gate and up.

What such a port dumps is put together here of what each part should be: the product of the port's
own norm with the checkpoint's matrix. Where parts lie is by hand.
"""

import json
from collections.abc import Callable

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.fused import with_fused
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import dumped, explained, graph_of, ids, model_of, port, prompt

NAME, BIASED = "models/untied_float32", "models/biased_float16"
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
Lay = Callable[..., np.ndarray]


def behind(*parts):
    return np.concatenate(parts, axis=-1)


def by_key_heads(q, k, v):
    groups = model_of(NAME).config.num_key_value_heads
    blocks = [one.reshape(*one.shape[:2], groups, -1) for one in (q, k, v)]
    return behind(*blocks).reshape(*q.shape[:2], -1)


def in_turns(gate, up):
    return np.stack([gate, up], axis=-1).reshape(*gate.shape[:2], -1)


def made(taps, tap, norm):
    """Return what the port's norm gives by the checkpoint's matrix, rounded as the port rounds."""
    graph, kind = graph_of(NAME), np.dtype(np.float32)
    given = {graph.taps[norm]: taps[norm]}
    read = Tensors(model_of(NAME).checkpoint)
    return Evaluator(graph, ways(kind)[1][0], kind, given, read).target(graph.taps[tap])


def fused(taps, heads: Lay | None = behind, halves: Lay | None = behind):
    """Return the dump of a port that makes both products, and cuts them as it will."""
    taps = dict(taps)
    for number in range(model_of(NAME).config.num_hidden_layers):
        layer = f"model.layers.{number}"
        for lay, norm, module, names, whole in (
            (heads, "input_layernorm", "self_attn", ATTENTION, "qkv_proj"),
            (halves, "post_attention_layernorm", "mlp", MLP, "gate_up_proj"),
        ):
            if lay is not None:
                paths = [f"{layer}.{module}.{part}" for part in names]
                parts = [made(taps, path, f"{layer}.{norm}") for path in paths]
                taps[f"{layer}.{module}.{whole}"] = lay(*parts)
                for path in paths:
                    del taps[path]
    return taps


HEADS = {
    "q_proj, k_proj, v_proj": behind,
    "k_proj, q_proj, v_proj": lambda q, k, v: behind(k, q, v),
    "q_proj, k_proj, v_proj, key head by key head": by_key_heads,
}
HALVES = {
    "gate_proj, up_proj": behind,
    "up_proj, gate_proj": lambda gate, up: behind(up, gate),
    "gate_proj, up_proj, taking turns": in_turns,
}


@pytest.mark.parametrize(("heads", "halves"), [*zip(HEADS, HALVES, strict=True)])
def test_a_right_port_lays_parts_as_it_likes(heads, halves):
    taps = port(NAME)
    found = explained(NAME, fused(taps, HEADS[heads], HALVES[halves]))
    assert found.verdict == "clean" and found.unmatched == []
    assert found.compared == explained(NAME, taps).compared
    for how in (heads, halves):
        assert sum(line.endswith(f"cut up, as its values say: {how}") for line in found.conventions)


@pytest.mark.parametrize(
    ("bug", "lay"),
    [
        ("fused-qkv-layout[queries, values, keys]", behind),
        ("fused-qkv-layout[all, cut group by group]", behind),
        ("fused-qkv-layout[group by group, cut as all]", by_key_heads),
        ("rope-sign-flipped", by_key_heads),
        ("gate-up-interleaved-split", behind),
        ("swiglu-gate-up-swapped", behind),
    ],
)
def test_what_is_done_to_a_right_product_is_named_behind_it(bug, lay):
    found = explained(NAME, fused(port(NAME, [bug]), lay))
    assert found.unexplained == [] and found.unmatched == []
    assert [one.id for one in found.faults] == [bug.partition("[")[0]]
    if "[" in bug:
        assert found.faults[0].variant == bug.partition("[")[2].removesuffix("]")


def test_exchanged_halves_may_also_have_been_stored_so():
    """Whoever lays gate and up has both in hand: what is exchanged is said both ways."""
    [found] = explained(NAME, fused(port(NAME, ["swiglu-gate-up-swapped"]))).faults
    assert [*found.also_fits] == ["fused-gate-up-order"]


def test_several_at_once():
    bugs = ["fused-qkv-layout[queries, values, keys]", "rope-sign-flipped", "rms-eps-wrong"]
    found = explained(NAME, fused(port(NAME, bugs)))
    assert ids(found) == {bug.partition("[")[0] for bug in bugs} and found.unexplained == []


def together(taps, name, heads: Lay | None = behind, halves: Lay | None = behind):
    """Return a dump whose parts were made as they are, right or wrong, and lie in one product."""
    taps = dict(taps)
    for number in range(model_of(name).config.num_hidden_layers):
        for lay, module, names, whole in (
            (heads, "self_attn", ATTENTION, "qkv_proj"),
            (halves, "mlp", MLP, "gate_up_proj"),
        ):
            paths = [f"model.layers.{number}.{module}.{part}" for part in names]
            if lay is not None and all(path in taps for path in paths):
                parts = [taps.pop(path) for path in paths]
                taps[f"model.layers.{number}.{module}.{whole}"] = lay(*parts)
    return taps


def turned_in_place(name):
    """Return the dump of an engine that turns queries and keys where they lie."""
    whole, taps = port(name, level="taps"), port(name)
    for number in range(model_of(name).config.num_hidden_layers):
        module = f"model.layers.{number}.self_attn"
        q, k = (np.swapaxes(whole[f"{module}.{one}_rope"], 1, 2).reshape(1, 20, -1) for one in "qk")
        taps[f"{module}.qkv_proj"] = behind(q, k, taps[f"{module}.v_proj"])
        for part in (*ATTENTION, "q_norm", "k_norm"):
            taps.pop(f"{module}.{part}", None)
    return taps


def in_passes(taps, name, first):
    """Return what is found in a dump of a prompt of so many tokens, and a step for each other."""
    tokens = prompt(model_of(name))[0].tolist()
    passes = {tap: value[:, :first] for tap, value in taps.items()}
    for step, at in enumerate(range(first, len(tokens)), 1):
        passes |= {f"step.{step}/{tap}": value[:, at : at + 1] for tap, value in taps.items()}
    fed, later = json.dumps(tokens[:first]), json.dumps(tokens[first:])
    return explain(model_of(name), dumped(passes, tokens=fed, decoded=later))


def cut_lines(found):
    return [line for line in found.conventions if " cut up, " in line or " left: " in line]


def test_a_product_that_is_wrong_in_one_layer_is_left_there():
    """Layer 0 says how parts lie. That of layer 1 is half as large again, and says nothing."""
    taps, whole = fused(port(NAME)), "model.layers.1.self_attn.qkv_proj"
    taps[whole] = taps[whole] * np.float32(1.5)
    found = explained(NAME, taps, faults=[])
    assert found.unmatched == [whole]
    assert cut_lines(found)[1:] == [
        "self_attn.qkv_proj of 1 layer cut up, as its values say: q_proj, k_proj, v_proj",
        "self_attn.qkv_proj of 1 layer left: its values there do not say so",
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_before_its_small_bias_is_left(dtype):
    """A tenth of what a number is as a rule, or less, is missing: that is no right part."""
    taps = port(NAME, dtype=dtype)
    whole = fused(taps)
    for tap in [tap for tap in whole if tap.endswith("qkv_proj")]:
        some = whole[tap].astype(np.float32)
        bias = 0.03 * some.std() * np.random.default_rng(0).standard_normal(some.shape[-1])
        whole[tap] = (some - bias).astype(whole[tap].dtype)
    found = explained(NAME, whole, faults=[])
    assert found.verdict == "clean" and len(found.unmatched) == 2


@pytest.mark.parametrize(
    ("heads", "halves", "layers"), [(behind, None, 2), (None, behind, 4), (None, in_turns, 4)]
)
def test_layers_may_be_of_other_widths(heads, halves, layers):
    """A full layer's heads are wider, and so are some layers' MLPs."""
    name = "gemma4/effective"
    found = explained(name, together(port(name), name, heads, halves))
    assert found.verdict == "clean" and found.unmatched == []
    [line] = cut_lines(found)
    assert f" of {layers} layers cut up, " in line


def test_layers_may_have_other_numbers_of_key_heads():
    """Of a layer with one key head both layouts are the same."""
    name = "gemma4/effective"
    taps, config = port(name), model_of(name).config
    for number in (0, 1):
        module, groups = f"model.layers.{number}.self_attn", config.heads_of(number)[0]
        parts = [taps.pop(f"{module}.{part}") for part in ATTENTION]
        blocks = [one.reshape(1, 20, groups, -1) for one in parts]
        taps[f"{module}.qkv_proj"] = behind(*blocks).reshape(1, 20, -1)
    found = explained(name, taps)
    assert found.verdict == "clean" and found.unmatched == []


@pytest.mark.parametrize("layer", [0, 1])
def test_layers_that_say_different_things_are_all_left(layer):
    """Rows that were loaded wrong look like another layout, in whichever layer."""
    bug = "fused-qkv-layout[queries, values, keys]"
    taps = port(NAME, [bug], where=lambda call: call.layer == layer)
    found = explained(NAME, together(taps, NAME, halves=None))
    assert len(found.unmatched) == 2 and found.unexplained == []
    assert [(one.id, one.variant) for one in found.faults] == [
        ("fused-qkv-layout", "queries, values, keys")
    ]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(
    ("bug", "lays"),
    [
        ("fused-qkv-layout[all, cut group by group]", {"halves": None}),
        ("gate-up-interleaved-split", {"heads": None}),
    ],
)
def test_a_product_that_was_loaded_wrong_in_one_layer_keeps_its_name(bug, lays, layer):
    taps = port(NAME, [bug], where=lambda call: call.layer == layer)
    found = explained(NAME, together(taps, NAME, **lays))
    assert len(found.unmatched) == 1 and found.unexplained == []
    assert [one.id for one in found.faults] == [bug.partition("[")[0]]


@pytest.mark.parametrize("first", [1, 2, 17])
def test_the_first_token_does_not_say_how_heads_lie(first):
    """There a turned key is as it was. This model has no norm of heads that would show it."""
    name = "llama/mistral_window"
    found = in_passes(turned_in_place(name), name, first)
    assert found.verdict == "clean"
    assert [one.rpartition(".")[2] for one in found.unmatched] == ["qkv_proj"] * 2


def test_one_token_says_how_gate_and_up_lie():
    found = in_passes(together(port(NAME), NAME, heads=None), NAME, 1)
    assert found.verdict == "clean" and found.unmatched == []


def test_a_step_that_has_a_part_alone_is_compared_by_it():
    taps = port(NAME)
    whole, step = fused(taps), {f"step.1/{tap}": value[:, -1:] for tap, value in taps.items()}
    passes = {tap: value[:, :-1] for tap, value in whole.items()}
    passes |= {f"step.1/{tap}": value[:, -1:] for tap, value in whole.items()} | step
    tokens = prompt(model_of(NAME))[0].tolist()
    fed, later = json.dumps(tokens[:-1]), json.dumps(tokens[-1:])
    found = explain(model_of(NAME), dumped(passes, tokens=fed, decoded=later))
    assert found.verdict == "clean" and all(" left: " in line for line in cut_lines(found))


def test_what_is_made_of_much_else_says_nothing(monkeypatch):
    """Nobody waits for layers that are computed only to ask how parts lie behind them."""
    monkeypatch.setattr(f"{with_fused.__module__}.CALLS", 8)
    taps = fused(port(NAME), halves=None)
    kept = {tap: x for tap, x in taps.items() if "qkv_proj" in tap or tap == "lm_head"}
    found = explained(NAME, kept)
    assert found.verdict == "clean"
    assert found.unmatched == ["model.layers.1.self_attn.qkv_proj"]


@pytest.mark.parametrize(("rows", "count"), [([*range(8)], 0), ([*range(12, 20)], 4)])
def test_of_an_excerpt_none_but_the_first_tokens_are_cut_up(rows, count):
    """The first tokens are a prompt of their own."""
    some = {tap: value[:, rows] for tap, value in fused(port(NAME)).items()}
    found = explain(model_of(NAME), dumped(some, NAME, positions=json.dumps(rows)))
    assert found.verdict == "clean" and len(found.unmatched) == count


def test_names_that_nobody_wrote_are_not_counted():
    taps = {
        tap.replace("self_attn.qkv_proj", "attn.wqkv"): x for tap, x in fused(port(NAME)).items()
    }
    [line] = [one for one in explained(NAME, taps).conventions if "names mapped" in one]
    assert line == f"2 of {len(taps)} names mapped to taps"


def test_keys_that_were_turned_in_place_are_compared_with_nothing():
    """An engine may turn queries and keys where they lie, and hand out the product after that."""
    found = explained(NAME, turned_in_place(NAME))
    assert found.verdict == "clean" and len(found.unmatched) == 2
    assert any("self_attn.qkv_proj left: " in line for line in found.conventions)


def test_beside_a_part_alone_the_product_is_compared_with_nothing():
    taps = port(NAME)
    found = explained(NAME, fused(taps) | {name: taps[name] for name in taps if "q_proj" in name})
    assert found.verdict == "clean" and len(found.unmatched) == 2


def test_a_product_without_its_biases_stays_whole_and_is_named():
    """No layer has it right, so nothing says how it lies, and the bug is found behind it."""
    taps = port(BIASED, ["qkv-bias-dropped"])
    for number in range(model_of(BIASED).config.num_hidden_layers):
        module = f"model.layers.{number}.self_attn"
        parts = [taps.pop(f"{module}.{part}") for part in ATTENTION]
        taps[f"{module}.qkv_proj"] = behind(*parts)
    found = explained(BIASED, taps)
    assert ids(found) == {"qkv-bias-dropped"} and found.unexplained == []


def test_in_steps_too():
    """A step has the columns of its own token."""
    taps, tokens = fused(port(NAME)), prompt(model_of(NAME))[0].tolist()
    passes = {tap: value[:, :-1] for tap, value in taps.items()}
    passes |= {f"step.1/{tap}": value[:, -1:] for tap, value in taps.items()}
    first, last = json.dumps(tokens[:-1]), json.dumps(tokens[-1:])
    found = explain(model_of(NAME), dumped(passes, tokens=first, decoded=last))
    assert found.verdict == "clean" and found.unmatched == [] and found.steps == 1


@pytest.mark.parametrize(
    ("qkv", "gate_up"), [("attn.wqkv", "ffn.w13"), ("attention.query_key_value", "ffn.gate_up")]
)
def test_names_of_others(qkv, gate_up):
    spelled = {"self_attn.qkv_proj": qkv, "mlp.gate_up_proj": gate_up}
    taps = fused(port(NAME))
    for ours, theirs in spelled.items():
        taps = {tap.replace(ours, theirs): value for tap, value in taps.items()}
    found = explained(NAME, taps)
    assert found.verdict == "clean" and found.unmatched == []


def test_a_map_may_name_them(tmp_path):
    """No word of these names says what they hold."""
    spelled = {"self_attn.qkv_proj": "a.x", "mlp.gate_up_proj": "m.y"}
    layer, taps = "model.layers.{layer}", fused(port(NAME))
    lines = [f"{layer}.{ours}: {layer}.{own}" for ours, own in spelled.items()]
    (names := tmp_path / "map.yaml").write_text("\n".join(lines))
    for ours, own in spelled.items():
        taps = {tap.replace(ours, own): value for tap, value in taps.items()}
    found = explained(NAME, taps, names=names)
    assert found.verdict == "clean" and found.unmatched == []
    assert found.compared == explained(NAME, fused(port(NAME))).compared
