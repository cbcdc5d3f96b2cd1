"""Packed weights that a port unpacked wrongly, or packed otherwise. By hand."""

import mlx.core as mx
import numpy as np
import pytest

from lockstep.parity.before.own_tensors import OwnTensors
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops.dequantize_affine import unpack_codes
from tests.parity.before.ports import (
    BFLOAT16,
    FIRST,
    WITNESSES,
    Tensors,
    compared,
    only,
    tensors,
    theirs,
)


def codes_of(packed: Tensors, module: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes = unpack_codes(packed[f"{module}.weight"], 4).astype(np.float32)
    group = codes.shape[1] // packed[f"{module}.scales"].shape[1]
    parts = (packed[f"{module}.{end}"].astype(np.float32) for end in ("scales", "biases"))
    return codes, *(np.repeat(part, group, axis=1) for part in parts)


@pytest.mark.parametrize(
    ("unpack", "fault"),
    [
        (lambda q, s, b: s * q + b, None),
        (lambda q, s, b: (s * q + b).astype(np.float16), None),
        (lambda q, s, b: s * q, "affine-bias-dropped"),
        (lambda q, s, b: s * (q - b), "affine-zero-point-style"),
        (lambda q, s, b: s * np.where(q > 7, q - 16, q) + b, "q4-signedness"),
        (lambda q, s, b: s * (q - 8), "q4-signedness"),
        (
            lambda q, s, b: s * q.reshape(len(q), -1, 2)[..., ::-1].reshape(q.shape) + b,
            "q4-nibble-order",
        ),
    ],
)
def test_a_packed_matrix_that_was_unpacked_otherwise(unpack, fault, tmp_path):
    model, module = "models/affine_4_64", FIRST + "mlp.down_proj"
    port = tensors(model)
    values = unpack(*codes_of(port, module))
    for end in ("scales", "biases"):
        del port[f"{module}.{end}"]
    port[f"{module}.weight"] = values
    found = [one for one in compared(model, port, tmp_path).findings if not one.harmless]
    assert [one.fault for one in found] == [fault] * (fault is not None)


def test_codes_cut_at_another_width(tmp_path):
    model, module = "models/affine_4_64", FIRST + "mlp.down_proj"
    port = tensors(model)
    rows, columns = codes_of(port, module)[0].shape
    port = {name: value for name, value in port.items() if module not in name}
    port[f"{module}.weight"] = np.random.default_rng(1).standard_normal((rows, columns // 2))
    assert only(compared(model, port, tmp_path)).fault == "quant-bits-global"


def packed_by_hand(values: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, ...]:
    """Pack to the nearest step, by loop over nothing but groups."""
    grouped = values.reshape(len(values), -1, group)
    low, high = grouped.min(-1), grouped.max(-1)
    scales = (high - low) / (2**bits - 1)
    codes = np.rint((grouped - low[..., None]) / scales[..., None]).astype(np.uint64)
    codes = codes.reshape(len(values), -1, 32 // bits)
    words = (codes << (bits * np.arange(32 // bits, dtype=np.uint64))).sum(-1)
    return words.astype(np.uint32), scales.astype(np.float32), low.astype(np.float32)


def test_another_quantisation_is_told_first(tmp_path):
    module = FIRST + "mlp.down_proj"
    port = tensors(BFLOAT16)
    values = port.pop(f"{module}.weight").astype(np.float32)
    parts = zip(("weight", "scales", "biases"), packed_by_hand(values, 4, 32), strict=True)
    port |= {f"{module}.{end}": part for end, part in parts}
    zeroed_name = FIRST + "self_attn.v_proj.weight"
    port[zeroed_name] = np.zeros_like(port[zeroed_name])
    first, second = compared(BFLOAT16, port, tmp_path).findings
    assert (first.kind, first.harmless) == ("another quantisation", True)
    assert "4 bits in groups of 32" in first.text
    assert second.fault == "strict-false-drops-tensors"


@pytest.mark.parametrize("model", ["models/affine_4_64", "models/minifloats_mixed"])
def test_weights_that_ours_were_packed_from(model, tmp_path):
    """Within half a step of what is packed lies what it may have been packed from."""
    own, rng = OwnTensors(open_checkpoint(WITNESSES / model)), np.random.default_rng(3)
    port = {name: own.read(name) for name in own.checkpoint.names}
    for name in port:
        packed = own.packed(name)
        if packed is not None:
            affine = isinstance(packed, QuantizedTensor)
            step = np.abs(packed.scales).astype(float).min() / 2 if affine else port[name] * 0.03
            moved = port[name] + step * rng.uniform(-1, 1, port[name].shape)
            port[name] = moved.astype(np.float32)
    found = only(compared(model, port, tmp_path))
    assert (found.kind, found.harmless) == ("another quantisation", True)


@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 64), (4, 64), (6, 32), (8, 64)])
def test_a_port_that_mlx_packed_runs_another_quantisation(bits, group, tmp_path):
    """By witness: MLX itself packs every matrix that it can."""
    port = tensors(BFLOAT16)
    names = [n for n, x in port.items() if x.ndim == 2 and x.shape[1] % group == 0]
    for name in names:
        values = mx.array(port.pop(name).astype(np.float32))
        parts = mx.quantize(values, group_size=group, bits=bits)
        ends = zip(("weight", "scales", "biases"), parts, strict=True)
        port |= {f"{name.removesuffix('.weight')}.{end}": np.array(part) for end, part in ends}
    found = only(compared(BFLOAT16, port, tmp_path))
    assert (found.kind, found.harmless, theirs(found)) == (
        "another quantisation",
        True,
        sorted(names),
    )
    assert f"{bits} bits in groups of {group}" in found.text
