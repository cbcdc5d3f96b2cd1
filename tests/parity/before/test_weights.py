"""What was done to a port's weights is named. Each wrong file is written here, by hand."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.before.elsewhere import layer_text
from lockstep.parity.before.hypotheses import judged
from lockstep.parity.before.pairs import pair
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.before.ports import (
    BFLOAT16,
    FIRST,
    FLOAT32,
    GPT2,
    SPARSE,
    STACKED,
    Tensors,
    compared,
    exchange,
    interleaved,
    only,
    tensors,
    theirs,
    zeroed,
)
from tests.parity.builders import checkpoint


def read_as_float16(port: Tensors) -> None:
    port.update({name: value.view(np.float16) for name, value in port.items()})


def read_as_float16_and_widened(port: Tensors) -> None:
    for name, value in port.items():
        port[name] = value.view(np.float16).astype(np.float32)


def read_as_bfloat16(port: Tensors) -> None:
    port.update({name: value.view(ml_dtypes.bfloat16) for name, value in port.items()})


def one_added(port: Tensors) -> None:
    for name in port:
        if "norm" in name:
            port[name] = (port[name].astype(np.float32) + 1).astype(port[name].dtype)


def layers_exchanged(port: Tensors) -> None:
    for name in [name for name in port if name.startswith(FIRST)]:
        other = name.replace(".0.", ".1.")
        port[name], port[other] = port[other], port[name]


def dropped(port: Tensors) -> None:
    del port[FIRST + "self_attn.v_proj.weight"]


def shifted(port: Tensors) -> None:
    name = FIRST + "self_attn.v_proj.weight"
    data = b"12345678" + port[name].tobytes()[:-8]
    port[name] = np.frombuffer(data, port[name].dtype).reshape(port[name].shape)


def poured(port: Tensors) -> None:
    table = port["model.embed_tokens.weight"]
    port["model.embed_tokens.weight"] = np.ascontiguousarray(table.T).reshape(table.shape)


def head_of_its_own(port: Tensors) -> None:
    port["lm_head.weight"] = port["model.embed_tokens.weight"][::-1]


def head_tied(port: Tensors) -> None:
    port["lm_head.weight"] = port["model.embed_tokens.weight"].copy()


def head_left_out(port: Tensors) -> None:
    del port["lm_head.weight"]


def gate_below_up(port: Tensors) -> None:
    for name in port:
        if "gate_up_proj" in name:
            half = port[name].shape[1] // 2
            port[name] = np.roll(port[name], half, axis=1)


def gate_and_up_by_turns(port: Tensors) -> None:
    for name in port:
        if "gate_up_proj" in name:
            port[name] = np.stack([interleaved(one, 1) for one in port[name]])


def qkv_by_heads(port: Tensors) -> None:
    name = "transformer.h.0.attn.c_attn.weight"
    columns = port[name].T  # q of all heads, k of all heads, v of all heads
    wide = len(columns) // 9  # of three heads
    order = [part * 3 + head for head in range(3) for part in range(3)]
    port[name] = np.concatenate([columns[one * wide :][:wide] for one in order]).T


def square_turned(port: Tensors) -> None:
    name = "transformer.h.0.attn.c_proj.weight"
    port[name] = port[name].T


def without_biases(*parts: str):
    def change(port: Tensors) -> None:
        for name in [name for name in port if name.endswith(tuple(f"{p}.bias" for p in parts))]:
            del port[name]

    return change


LLAMA = "llama/biased_llama3"
NAMED = [
    (LLAMA, without_biases("q_proj", "k_proj", "v_proj"), "qkv-bias-dropped"),
    (LLAMA, without_biases("o_proj", "down_proj"), "o-proj-mlp-bias-dropped"),
    (GPT2, without_biases("c_attn"), "qkv-bias-dropped"),
    (GPT2, without_biases("ln_1", "ln_f"), "layernorm-bias-dropped"),
    (BFLOAT16, read_as_float16, "bf16-read-as-fp16"),
    (BFLOAT16, read_as_float16_and_widened, "bf16-read-as-fp16"),
    ("models/biased_float16", read_as_bfloat16, "bf16-read-as-fp16"),
    (BFLOAT16, one_added, "norm-plus-one-twice"),
    (BFLOAT16, layers_exchanged, "layers-swapped"),
    (BFLOAT16, exchange("gate_proj", "up_proj"), "fused-gate-up-order"),
    (BFLOAT16, zeroed, "strict-false-drops-tensors"),
    (BFLOAT16, dropped, "strict-false-drops-tensors"),
    (BFLOAT16, shifted, "tensor-data-offset"),
    (BFLOAT16, poured, "embed-table-transposed"),
    (BFLOAT16, head_of_its_own, "tied-head-mishandled"),
    (FLOAT32, head_tied, "tied-head-mishandled"),
    (FLOAT32, head_left_out, "tied-head-mishandled"),
    (STACKED, gate_below_up, "fused-gate-up-order"),
    (STACKED, gate_and_up_by_turns, "gate-up-interleaved-split"),
    (GPT2, qkv_by_heads, "fused-qkv-layout"),
    (GPT2, square_turned, "weight-square-transposed"),
    (
        "gemma4/dense",
        exchange("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        "ffn-norms-swapped",
    ),
    (
        "gemma4/dense",
        exchange("pre_feedforward_layernorm", "post_attention_layernorm"),
        "norm-name-aliasing",
    ),
    (BFLOAT16, exchange("input_layernorm", "post_attention_layernorm"), "norm-name-aliasing"),
]


@pytest.mark.parametrize(
    ("model", "change", "fault"), NAMED, ids=[f"{m}-{f}-{i}" for i, (m, _, f) in enumerate(NAMED)]
)
def test_a_change_is_named(model, change, fault, tmp_path):
    port = tensors(model)
    before = {name: (value.dtype, value.tobytes()) for name, value in port.items()}
    change(port)
    touched = [
        name for name, value in port.items() if before.get(name) != (value.dtype, value.tobytes())
    ]
    touched += [name for name in before if name not in port]
    found = only(compared(model, port, tmp_path))
    assert (found.fault, found.harmless) == (fault, False)
    named = {name for pair in found.tensors for name in pair}
    assert touched and named >= set(touched)


def test_gains_and_biases_of_two_norms_are_named(tmp_path):
    port = tensors(GPT2)
    exchange("ln_1", "ln_2")(port)
    found = compared(GPT2, port, tmp_path).findings
    assert [one.fault for one in found] == ["norm-name-aliasing"] * 2  # gains, and biases


@pytest.fixture(scope="module")
def grouped(tmp_path_factory) -> Path:
    """A model of 4 query heads and 2 key heads."""
    return checkpoint(tmp_path_factory.mktemp("grouped"), attention_bias=False)


@pytest.mark.parametrize(
    ("heads", "harmless", "fault"),
    [((4, 2), True, None), ((4, 4), False, "rope-unpermute-gqa"), ((4, None), False, None)],
)
def test_the_rows_of_q_and_k_are_a_matter_of_heads(grouped, tmp_path, heads, harmless, fault):
    port = tensors(grouped)
    for side, count in zip("qk", heads, strict=True):
        for name in port:
            if f".{side}_proj." in name and count:
                port[name] = interleaved(port[name], count)
    found = compared(grouped, port, tmp_path).findings
    faults = [one for one in found if not one.harmless]
    assert (not faults) == harmless
    assert fault in {one.fault for one in faults} or (harmless and fault is None)


def test_experts_in_the_order_of_text():
    stack = np.random.default_rng(0).standard_normal((12, 4, 3)).astype(np.float32)
    moved = stack[[0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]]
    verdict = judged(pair("model.layers.0.mlp.experts.gate_proj.weight", moved, stack))
    assert verdict is not None and verdict.fault == "moe-expert-order"
    verdict = judged(pair("model.layers.0.mlp.experts.gate_proj.weight", stack[::-1], stack))
    assert verdict is not None and (verdict.kind, verdict.fault) == ("experts permuted", None)


def test_layers_in_the_order_of_text():
    order = [0, 1, 10, 11, *range(2, 10)]
    moved = [(place, layer) for place, layer in enumerate(order) if place != layer]
    assert "sorted as text" in layer_text(moved, 12)
    assert "sorted as text" not in layer_text([(0, 1), (1, 0)], 12)
    assert "all moved by 1" in layer_text([(0, 1), (1, 2), (2, 3)], 12)


def test_single_experts_that_hold_one_another(tmp_path):
    port = tensors(SPARSE)
    for part in ("gate_proj", "up_proj", "down_proj"):
        one, other = (f"model.layers.1.mlp.experts.{e}.{part}.weight" for e in (2, 4))
        port[one], port[other] = port[other], port[one]
    found = only(compared(SPARSE, port, tmp_path))
    assert found.kind == "experts permuted" and "expert 2 holds our expert 4" in found.text


@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_what_nothing_explains_is_unknown(noise, tmp_path):
    port, name = tensors(FLOAT32), FIRST + "self_attn.q_proj.weight"
    rng = np.random.default_rng(5)
    port[name] = port[name] + noise * rng.standard_normal(port[name].shape).astype(np.float32)
    found = only(compared(FLOAT32, port, tmp_path))
    assert (found.kind, found.fault, found.harmless) == ("unknown difference", None, False)
    assert theirs(found) == [name]
    assert found.figures["rows_apart"] == found.figures["rows"] == len(port[name])


def test_one_factor_is_told_without_inventing_a_class(tmp_path):
    port, name = tensors(FLOAT32), FIRST + "self_attn.q_proj.weight"
    port[name] = port[name] * np.float32(1.002)
    found = only(compared(FLOAT32, port, tmp_path))
    assert (found.kind, found.fault) == ("factor", None)
    assert found.figures["factor"] == pytest.approx(1.002)


def test_rows_in_no_known_order_have_no_class(tmp_path):
    port, name = tensors(GPT2), "transformer.h.0.attn.c_attn.weight"
    port[name] = port[name][:, ::-1]
    found = only(compared(GPT2, port, tmp_path))
    assert (found.kind, found.fault) == ("rows permuted", None)


def test_norms_of_ones_do_not_tell_a_sum_from_a_factor():
    ones, twos = np.ones(8, np.float32), np.full(8, 2, np.float32)
    verdict = judged(pair("model.norm.weight", twos, ones))
    assert verdict is not None and verdict.fault is None
    assert "times 2, or ours plus 1" in verdict.text


def renamed(name: str) -> str:
    for ours, other in (
        ("model.layers.0.", "blocks/1/"), ("model.layers.1.", "blocks/2/"),
        ("self_attn.q_proj", "attn/wq"), ("self_attn.k_proj", "attn/wk"),
        ("self_attn.v_proj", "attn/wv"), ("self_attn.o_proj", "attn/wo"),
        ("mlp.gate_proj", "ffn/w1"), ("mlp.up_proj", "ffn/w3"), ("mlp.down_proj", "ffn/w2"),
        ("input_layernorm", "norm1"), ("post_attention_layernorm", "norm2"),
        ("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output"),
    ):  # fmt: skip
        name = name.replace(ours, other)
    return name


def test_names_of_their_own_are_recovered_and_findings_keep_them(tmp_path):
    port = tensors(FLOAT32)
    exchange("gate_proj", "up_proj")(port)
    report = compared(FLOAT32, {renamed(name): value for name, value in port.items()}, tmp_path)
    assert report.unmatched == [] and "layers counted from 1" in report.plan[0]
    assert theirs(only(report)) == sorted(
        f"blocks/{layer}/ffn/w{part}.weight" for layer in (1, 2) for part in (1, 3)
    )


def test_tensors_without_names_are_known_by_their_values(tmp_path):
    port = {f"t{chr(97 + i)}": value for i, value in enumerate(tensors(FLOAT32).values())}
    report = compared(FLOAT32, port, tmp_path)
    assert report.findings == [] and report.compared == len(port)


def test_a_report_is_json(tmp_path):
    port = tensors(FLOAT32)
    zeroed(port)
    port[FIRST + "self_attn.q_proj.weight"][0, 0] = np.nan
    document = json.loads(json.dumps(compared(FLOAT32, port, tmp_path).to_json(), allow_nan=False))
    assert {one["kind"] for one in document["findings"]} == {"not loaded", "unknown difference"}
    assert set(document) == {"compared", "plan", "unmatched", "findings"}


def test_a_file_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="none of its tensors is one of the checkpoint's"):
        compared(FLOAT32, {"a": np.zeros((3, 5), np.float32)}, tmp_path)
