"""The legal ways: each is right, and each is what it says an engine does."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.check import check
from lockstep.parity.judging.judge import judge
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.noise import float32, half, ways
from lockstep.parity.noise.calibrate import Draw, clean, faulty, outcome
from lockstep.parity.noise.calibration_tables import tables
from lockstep.parity.noise.cost import FUSED, TOKENS, cost, recorded
from lockstep.parity.noise.exact import exact
from lockstep.parity.noise.random_checkpoint import random_config
from lockstep.parity.noise.small_faults import FAULTS, IN_EVERY_LAYER
from lockstep.parity.replaying.oracle import Oracle
from lockstep.reference import ops
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.ops_backends import BACKENDS
from tests.parity import builders
from tests.sampled import sampled

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
EPSILON = {FLOAT64: 2.0**-52, FLOAT32: 2.0**-23, FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}
MLX = next(backend for backend in BACKENDS if backend.name == "mlx")
RNG = np.random.default_rng(0)


def normal(*shape, dtype=FLOAT64):
    return RNG.normal(size=shape).astype(dtype)


def off(found, right):
    """Return the root mean square of the difference over that of the right result."""
    error = np.asarray(found, np.float64) - right
    return np.sqrt(np.mean(error**2) / np.mean(np.square(right)))


def calls(dtype):
    """Every operation that a way may replace, on inputs that the dtype holds exactly."""

    def given(*shape):
        return normal(*shape, dtype=dtype)

    queries, keys = given(1, 4, 6, 16), given(1, 2, 6, 16)
    probs = ops.softmax(given(1, 4, 6, 6), np.tri(6, dtype=bool), masked_row="uniform")
    positions, frequencies = np.arange(6)[None], ops.rope_frequencies(theta=1e4, dims=16)
    table, tokens = given(9, 16), np.array([[1, 8, 1]])
    return {
        "linear": ((given(1, 5, 300), given(40, 300), given(40)), {}),
        "rms_norm": ((given(1, 5, 64), given(64)), {"eps": 1e-6}),
        "rope": ((queries, positions, frequencies), {"factor": 1.0}),
        "silu": ((given(1, 5, 64),), {}),
        "embedding": ((tokens, table), {"dtype": dtype}),
        "attention_scores": ((queries, keys), {"scale": 0.25}),
        "softmax": ((given(1, 4, 6, 6), np.tri(6, dtype=bool)), {"masked_row": "uniform"}),
        "attention_context": ((probs, keys, np.tri(6, dtype=bool)), {}),
    }


@pytest.mark.parametrize("dtype", EPSILON, ids=lambda one: one.name)
def test_every_way_computes_the_same_up_to_a_few_roundings(dtype):
    for name, (inputs, options) in calls(dtype).items():
        right = getattr(ops, name)(
            *(x.astype(FLOAT64) if x.dtype == dtype else x for x in inputs),
            **options | ({"dtype": FLOAT64} if "dtype" in options else {}),
        )
        for namespace, kind in ways(dtype):
            found = getattr(namespace, name)(*inputs, **options)
            assert (found.shape, kind) == (right.shape, dtype)
            assert off(found, right) < 4 * EPSILON[dtype], name


def test_float64_is_not_excused_by_float32():
    x, positions = normal(1, 2, 3, 16), np.array([[1000, 2000, 3000]])
    frequencies = ops.rope_frequencies(theta=1e4, dims=16)
    right = ops.rope(x, positions, frequencies, factor=1.0)
    assert all(
        off(way.rope(x, positions, frequencies, factor=1.0), right) == 0 for way, _ in ways(FLOAT64)
    )


@pytest.mark.parametrize("length", [16, 17, 300, 1024])
def test_few_steps_show_the_error_of_a_plain_loop(length):
    x, weight = normal(40, length, dtype=FLOAT32), normal(50, length, dtype=FLOAT32)
    right = x.astype(FLOAT64) @ weight.astype(FLOAT64).T
    loop = np.cumsum(x[:, None] * weight, axis=-1, dtype=FLOAT32)[..., -1]
    found = off(float32.sequential_linear(x[None], weight, None)[0], right)
    assert 0.8 < found / off(loop, right) < 1.25


def test_float32_angles_are_off_as_far_as_their_positions():
    x, frequencies = normal(1, 1, 1, 64, dtype=FLOAT32), ops.rope_frequencies(theta=1e6, dims=64)
    for way in (float32.float32_rope, float32.nearby_rope):
        near, far = (
            off(
                way(x, at, frequencies, factor=1.0),
                ops.rope(x.astype(FLOAT64), at, frequencies, factor=1.0),
            )
            for at in (np.array([[1]]), np.array([[6000]]))
        )
        assert near < 3e-7
        assert 1e-6 < far < 1e-3


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=lambda one: one.name)
def test_the_mlx_way_has_the_bits_of_mlx_on_a_cpu(dtype):
    """By witness: MLX itself."""
    x, positions = normal(1, 4, 50, 32, dtype=dtype), np.arange(50)[None]
    frequencies = ops.rope_frequencies(theta=1e4, dims=32)
    pairs = {
        "silu": (half.MLX_CPU["silu"](4 * x), MLX.silu(4 * x)),
        "rope": (
            half.MLX_CPU["rope"](x, positions, frequencies, factor=1.0),
            MLX.rope(x, positions, frequencies, factor=1.0),
        ),
        "attention_scores": (
            half.MLX_CPU["attention_scores"](x, x[:, :2], scale=32**-0.5),
            MLX.attention_scores(x, x[:, :2], scale=32**-0.5),
        ),
    }
    alike = {name: np.mean(ours == theirs) for name, (ours, theirs) in pairs.items()}
    assert all(share > 0.99 for share in alike.values()), alike


def test_the_centre_takes_weights_as_the_port_holds_them():
    x, weight, bias, gain = normal(1, 3, 64), normal(600, 64), normal(600), normal(64)
    held = exact(ops, BFLOAT16)
    coarse, rough, dull = (array.astype(BFLOAT16).astype(FLOAT64) for array in (weight, bias, gain))
    linear = held.linear(x, weight, bias)  # 600 rows are three tiles
    assert off(linear, x @ coarse.T + rough) < 1e-15
    assert off(linear, x @ weight.T + bias) > 1e-4
    normed = held.rms_norm(x, gain, eps=1e-6)
    assert off(normed, ops.rms_norm(x, dull, eps=1e-6)) == 0
    row = held.embedding(np.array([[5]]), weight, dtype=FLOAT64)
    assert (row.dtype, row[0, 0].tolist()) == (FLOAT64, coarse[5].tolist())
    assert held.silu is ops.silu


@pytest.mark.parametrize(
    ("name", "gated"), [("experts", ops.silu), ("geglu_experts", ops.gelu_tanh)]
)
def test_the_centre_takes_experts_as_the_port_holds_them(name, gated):
    """By loop: each token goes to one expert, whose numbers bfloat16 does not hold."""
    x, routing = normal(1, 3, 8), np.eye(2)[[0, 1, 1]][None]
    gate, up, down = normal(2, 5, 8), normal(2, 5, 8), normal(2, 8, 5)
    found = getattr(exact(ops, BFLOAT16), name)(x, routing, gate, up, down, per_token=1)
    g, u, d = (stack.astype(BFLOAT16).astype(FLOAT64) for stack in (gate, up, down))
    for token, one in zip(range(3), (0, 1, 1), strict=True):
        inner = gated(g[one] @ x[0, token]) * (u[one] @ x[0, token])
        assert off(found[0, token], d[one] @ inner) < 1e-14


def test_the_centre_takes_packed_weights_as_they_are_stored():
    packed = RNG.integers(0, 2**32, (5, 4), dtype=np.uint32)
    scales, biases = normal(5, 1, dtype=FLOAT32), normal(5, 1, dtype=FLOAT32)
    weight = QuantizedTensor(packed, scales, biases, bits=4, group_size=32, mode="affine")
    dense = ops.dequantize_affine(weight, rows=slice(None), dtype=FLOAT64)
    x = normal(1, 3, 32)
    assert off(exact(ops, BFLOAT16).linear(x, weight, None), x @ dense.T) < 1e-15


@sampled(5, "residual stream in bfloat16")
@pytest.mark.parametrize("name", FAULTS)
def test_a_small_fault_in_a_float32_port_is_found_at_its_tap(tmp_path, name):
    shape = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    packed = name in ("lowest bit of one packed weight", "scales rounded to bfloat16")
    path = builders.checkpoint(tmp_path, bits=4 if packed else None, **shape)
    reference, port = builders.pair(path)
    place = FAULTS[name](port, np.random.default_rng(0))
    assert place is not None
    said = outcome(
        check(reference, port, builders.TOKENS), place, everywhere=name in IN_EVERY_LAYER
    )
    assert said["wrongly blamed"] == []
    assert said["found"] or name == "exponential in SiLU off by 1e-5"


def test_the_outcome_tells_found_from_wrongly_blamed():
    def result(*wrong):
        taps = [("a", "linear"), ("b", "linear"), ("c", "add")]
        status = {name: "diverged" if name in wrong else "ok" for name, _ in taps}
        return Result("", "", [Tap(name, op, (1,), status[name], ratio=1.0) for name, op in taps])

    def said(wrong, place, everywhere):
        found = outcome(result(*wrong), place, everywhere=everywhere)
        return found["found"], found["wrongly blamed"]

    assert said("", "a", False) == (False, [])
    assert said("a", "a", False) == (True, [])
    assert said("b", "a", False) == (False, ["b"])
    assert said("b", "a", True) == (True, [])
    assert said("ac", "a", True) == (True, ["c"])


def test_random_configs_cover_what_is_hard():
    drawn = [SimpleNamespace(**random_config(np.random.default_rng(seed))) for seed in range(60)]
    assert any(one.head_dim * one.num_attention_heads != one.hidden_size for one in drawn)
    assert any(1 < one.num_key_value_heads < one.num_attention_heads for one in drawn)
    assert {one.hidden_size for one in drawn} >= {64, 1024}
    for name in ("tie_word_embeddings", "attention_bias"):
        assert {getattr(one, name) for one in drawn} == {True, False}


class Tiny(Draw):
    """A draw that takes no time."""

    def __init__(self, folder):
        self.seed, self.bits, self.path = 3, None, builders.checkpoint(folder)
        self.tokens, self.positions = builders.TOKENS, np.arange(8)[None] + 17


@sampled(0)
def test_a_seed_is_measured_and_set_out_in_tables(tmp_path):
    draw = Tiny(tmp_path)
    records, planted = [*clean(draw)], [*faulty(draw)]
    assert not any(one["alarm"] for one in records)
    assert {(one["port"], one["dtype"]) for one in records} == set(draw.runs())
    assert len(set(draw.runs())) == 6
    assert all(0 <= one["share"] <= 1 for one in records)
    text = tables(records, planted, by_port=True)
    assert text.startswith("1 seeds, 3 to 3.")
    assert f"{len(records)} taps, 0 false alarms." in text
    assert "| eps 1e-5 for 1e-6 | 1 of 1 " in text


def test_packed_half_precision_is_not_measured_where_mlx_sums_it_badly(tmp_path):
    draw = Tiny(tmp_path)
    draw.bits = 4
    assert [run for run in draw.runs() if run[0] == "mlx"] == [("mlx", "float32")]


def test_an_alarm_and_a_wrong_blame_are_listed():
    one = {"seed": 5, "port": "cpu", "dtype": "float32", "op": "add", "few": True, "ratio": 9.0}
    one |= {"tap": "x", "row": 9.0, "cell": 1.0, "share": 1.5, "alarm": True}
    fault = {"seed": 5, "dtype": "float32", "fault": "odd", "found": False, "ratio": 0.5}
    text = tables([one], [fault | {"wrongly blamed": ["model.norm"]}], by_port=True)
    assert "1 taps, 1 false alarms." in text
    assert "missed 1; with a tap wrongly blamed: 1." in text
    assert "'model.norm'" in text
    assert "| float32 | cpu | add | 1 | - | 9.00, 9.00 | 9.00 | 1.0 | 150 % | 1 |" in text
    assert "| odd | 0 of 1 (0.5) |" in text
    merged = tables([one], [], by_port=False)
    assert "| float32 | add | 1 | - | 9.00, 9.00 | 9.00 | 1.0 | 150 % | 1 |" in merged


def test_the_cost_is_that_of_judging_what_a_fused_port_dumps(tmp_path):
    path = builders.checkpoint(tmp_path, vocab_size=64)
    oracle = Oracle(builders.pair(path)[0], "float32")
    stages, port = recorded(oracle)
    assert len(stages) == 4
    assert port["logits"].shape == (1, TOKENS.size, 64)
    assert not any(name.endswith(FUSED) for name in port)
    assert all(seconds > 0 for seconds in cost(path, "float32"))


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_a_fraction_stays_as_it_is_and_a_factor_of_a_table_is_held_in_half_precision(dtype):
    """By hand: 53 ** 0.5 is 7.280110, and 7.28125 in both kinds."""
    x = normal(100, dtype=dtype)
    for by, held in ((53**-0.5, np.float32(53**-0.5)), (53**0.5, np.float32(7.28125))):
        right = (x.astype(FLOAT32) * held).astype(dtype)
        assert (half.wide_scale(x, by=by) == right).all()


def cast_adapter(x, a, b, scale):
    """What an adapter in float16 adds, each product rounded: as written in PEFT's `Linear`."""
    low, up = (factor.astype(FLOAT16).astype(FLOAT32) for factor in (a, b))
    inner = (x.astype(FLOAT32) @ low.T).astype(FLOAT16)
    return (inner.astype(FLOAT32) @ up.T).astype(FLOAT16) * FLOAT16.type(scale)


def adapted_rows(draw):
    """A projection of 24 inputs to 20 outputs in float16, its adapter in float32."""
    rng = np.random.default_rng(draw)
    a, b = (0.5 * rng.normal(size=size) / size[1] ** 0.5 for size in ((4, 24), (20, 4)))
    x, y = rng.normal(size=(6, 24)).astype(FLOAT16), rng.normal(size=(6, 20)).astype(FLOAT16)
    return x, (y / 4).astype(FLOAT16), a.astype(FLOAT32), b.astype(FLOAT32)


def judged_adapter(port, x, y, a, b):
    right = ops.add_lora(y.astype(FLOAT64), x.astype(FLOAT64), a, b, scale=3.0)
    legal = [way.add_lora(y, x, a, b, scale=3.0) for way, _ in ways(FLOAT16)]
    return judge(port, right, legal, FLOAT16)


def test_an_adapter_that_was_cast_to_half_precision_is_right_and_another_scale_is_not():
    for draw in range(40):
        x, y, a, b = adapted_rows(draw)
        assert judged_adapter(y + cast_adapter(x, a, b, 3.0), x, y, a, b).passed, draw
        assert not judged_adapter(y + cast_adapter(x, a, b, 3.02), x, y, a, b).passed, draw


def test_the_way_of_a_cast_adapter_has_its_bits_in_matrices_and_in_tables():
    """By law too: a row of a table is a product with a unit vector."""
    x, y, a, b = adapted_rows(0)
    right = y + cast_adapter(x, a, b, 3.0)
    assert (half.stepwise_add_lora(y, x, a, b, scale=3.0) == right).all()
    tokens, table = np.array([3, 0, 11]), normal(3, 20, dtype=FLOAT16)
    units = np.eye(24, dtype=FLOAT16)[tokens]
    rows = half.stepwise_add_lora_rows(table, tokens, b.T, a.T, scale=3.0)
    assert (rows == table + cast_adapter(units, a, b, 3.0)).all()


def test_lengths_in_half_precision_are_rounded_before_the_quotient():
    """By hand: |(3, 3.9)| is 4.9207, held as 4.9219; 6.9 as 6.8984: the quotient is 1.4016.

    Rounded once, 6.9 / 4.9207 = 1.4022 is a step more.
    """
    weight, magnitude, y = np.array([[3, 3.9]]), np.array([6.9]), np.ones((1, 1), FLOAT16)
    nothing = weight, None, np.zeros((1, 2)), np.zeros((1, 1)), magnitude
    held, once = np.array([1.401, 1.402], FLOAT16)
    assert half.stepwise_dora_rescale(y, *nothing, scale=1.0) == held
    assert ops.dora_rescale(y, *nothing, scale=1.0) == once
