"""Right operations conform, wrong ones are caught by a small example. By law, and by hand."""

import json
import subprocess
import sys
import textwrap
from itertools import count

import numpy as np
import pytest

from lockstep.parity.conformance.backends.module import Module
from lockstep.parity.conformance.case import Case
from lockstep.parity.conformance.compare import compare
from lockstep.parity.conformance.draw import Draw
from lockstep.parity.conformance.examine import examine, search
from lockstep.parity.conformance.families import EXAMPLES
from lockstep.parity.conformance.packing import SCALES
from lockstep.reference import ops
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each

FLOAT32 = np.dtype(np.float32)


def row_of(op, wrong, *, examples=100):
    space = type("Space", (), {op: staticmethod(wrong)})
    return examine(op, Module("wrong", space), examples=examples, seed=0, dtype=FLOAT32)


def test_every_operation_has_its_examples():
    assert sorted(EXAMPLES) == sorted(ops.__all__)


@long
@pytest.mark.parametrize("backend", ["mlx", "cpu", "reference"])
def test_our_backends_conform(lockstep, tmp_path, backend):
    """MLX on its CPU device, wherever there is another."""
    import mlx.core as mx

    with mx.stream(mx.cpu):
        said = lockstep("conformance", "--backend", backend, "--examples", 20, "--json",
                        tmp_path / "found.json")  # fmt: skip
    assert said.code == 0, said.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["verdict"] == "conforms"
    assert [one["op"] for one in found["ops"]] == ops.__all__
    assert {one["status"] for one in found["ops"]} == {"ok"}
    assert all(one["share"] < 1 for one in found["ops"])


def eps_outside(x, gain, *, eps):
    wide = x.astype(np.float64)
    root = np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True))
    return (wide / (root + eps) * gain).astype(x.dtype)


def unbiased(x, gain, bias, *, eps):
    wide = x - x.mean(axis=-1, keepdims=True)
    power = np.square(wide).sum(axis=-1, keepdims=True) / max(x.shape[-1] - 1, 1)
    return wide / np.sqrt(power + np.float32(eps)) * gain + bias


def highest_of_ties(logits, *, per_token, normalize):
    turned = ops.top_k_routing(logits[..., ::-1], per_token=per_token, normalize=normalize)
    return turned[..., ::-1]


def swallows_nan(x):
    return np.where(np.isnan(x), np.float32(0), ops.silu(x))


def blind_row_of_zeros(scores, mask, *, masked_row):
    return ops.softmax(scores, mask, masked_row="zero")


def wide_window(query, key, *, window):
    return ops.causal_mask(query, key, window=None if window is None else window + 1)


def tiled(queries, keys, *, scale):
    copies = queries.shape[1] // keys.shape[1]
    return ops.attention_scores(queries, np.tile(keys, (1, copies, 1, 1)), scale=scale)


def neighbours(x, positions, frequencies, *, factor):
    halves = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).swapaxes(-1, -2).reshape(x.shape)
    return ops.rope(halves, positions, frequencies, factor=factor)


def no_bias(x, weight, bias):
    return ops.linear(x, weight, None)


def one_group(weight, *, rows, dtype):
    out = ops.dequantize_affine(weight, rows=rows, dtype=dtype)
    return np.where(out == out[:, :1], 0, out).astype(dtype)


def flushed(weight, *, rows, dtype):
    """Take scales that are no normal half for 0."""
    data = weight.blocks.reshape(-1, BLOCKS[weight.format][1]).copy()
    for place in SCALES[weight.format]:
        data[(data[:, place + 1] & 0x7F) < 0x04, place : place + 2] = 0
    kept = BlockTensor(data.reshape(weight.blocks.shape), weight.format)
    return ops.dequantize_blocks(kept, rows=rows, dtype=dtype)


def one_block(queries, *others, **options):
    """Attend with the first 256 queries alone."""
    out = ops.attention(queries, *others, **options)
    out[:, :, 256:] = 0
    return out


def never_without_eps(x, gain, *, eps):
    return ops.rms_norm(x, gain, eps=max(eps, 1e-30))


@sampled(4, "causal_mask-wide_window-4")
@pytest.mark.parametrize(
    ("op", "wrong", "numbers"),
    [
        ("rms_norm", eps_outside, 2),
        ("rms_norm", never_without_eps, 2),
        ("dequantize_blocks", flushed, 256),
        ("attention", one_block, 257),
        ("layer_norm", unbiased, 2),
        ("top_k_routing", highest_of_ties, 40),
        ("silu", swallows_nan, 1),
        ("softmax", blind_row_of_zeros, 1),
        ("causal_mask", wide_window, 4),
        ("attention_scores", tiled, 16),
        ("rope", neighbours, 16),
        ("linear", no_bias, 2),
        ("dequantize_affine", one_group, 64),
        ("gelu_tanh", ops.gelu_erf, 2),
        ("rope_frequencies", lambda *, theta, dims: ops.rope_frequencies(theta=theta, dims=dims) *
         np.where(np.arange(dims // 2) == dims // 2 - 1, 1.001, 1), 8),
    ],
)  # fmt: skip
def test_a_wrong_operation_is_caught_with_a_small_example(op, wrong, numbers):
    row = row_of(op, wrong)
    assert row.status == "differs"
    assert "but should be" in row.place
    first = next(iter(row.case.values.values()))
    assert np.prod(np.shape(first)) <= numbers, row.example


def test_the_example_is_python_that_fails_again():
    """By law: what is printed makes the very arguments that were given."""
    row = row_of("attention_scores", tiled)
    space = {"np": np, "attention_scores": tiled}
    *made, call = row.example
    exec("\n".join(made), space)
    answer = eval(call, space)
    assert not compare(row.case, answer).passed


class Chance:
    """Draws without Hypothesis."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def whole(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def one_of(self, choices):
        return choices[self.whole(0, len(choices) - 1)]


@pytest.mark.parametrize("op", ops.__all__)
def test_the_expression_of_an_argument_gives_it_again(op):
    """By law, for arrays, packed matrices, masks and options alike."""
    import ml_dtypes

    from lockstep.parity.conformance import packing, values

    names = {name: getattr(packing, name) for name in ("affine", "minifloat", "blocks")}
    space = {"np": np, "ml_dtypes": ml_dtypes, "filled": values.filled, **vars(ops), **names}
    for seed in range(8):
        for name, given in EXAMPLES[op](Draw(Chance(seed), FLOAT32)).items():
            value = getattr(given.value, "array", given.value)
            again = eval(given.said, space)
            space[name] = again
            parts = [vars(one) if hasattr(one, "shape") and hasattr(one, "__dict__") else one
                     for one in (again, value)]  # fmt: skip
            np.testing.assert_equal(*parts)


def test_the_same_seed_gives_the_same_examples():
    def drawn(seed):
        seen = []
        search(lambda source: Case("silu", EXAMPLES["silu"](Draw(source, FLOAT32)), FLOAT32),
               lambda case: seen.append(case.lines()), examples=10, seed=seed)  # fmt: skip
        return seen

    assert drawn(1) == drawn(1) != drawn(2)


def silu_case(*numbers):
    given = EXAMPLES["silu"](Draw(Chance(0), FLOAT32))["x"]
    x = np.array(numbers, FLOAT32)
    return Case("silu", {"x": type(given)(x, "x")}, FLOAT32)


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        ([0.7310586, np.nan], True),
        ([0.7310587, np.nan], True),  # two units in the last place
        ([0.7310596, np.nan], False),
        ([0.7310586, 0.0], False),
        ([np.nan, np.nan], False),
        ([np.inf, np.nan], False),
        ([0.7310586], False),
    ],
)
def test_an_answer_is_held_to_numbers_and_kinds(answer, passed):
    """By hand: silu(1) is 0.731058579, silu(NaN) is NaN."""
    assert compare(silu_case(1.0, np.nan), np.array(answer, FLOAT32)).passed == passed


def test_a_crash_is_a_failure_with_its_example():
    def crash(x, *, by):
        raise RuntimeError("boom\nhere")

    row = row_of("scale", crash)
    assert (row.status, row.place) == ("failed", "raised RuntimeError: 'boom\\x0ahere'")
    assert row.case.values["x"].size == 1


@pytest.mark.parametrize(
    "answer", [None, "text", np.array([[[None]]]), np.ones((1, 1, 1), complex)]
)
def test_an_answer_of_no_numbers_differs(answer):
    row = row_of("scale", lambda x, *, by: answer)
    assert row.status == "differs"
    assert "but should be" in row.place


def test_a_module_that_leaves_the_program():
    """By hand: exit code 0 of the port must not be that of the command."""
    row = row_of("scale", lambda x, *, by: sys.exit(0))
    assert (row.status, row.place) == ("failed", "raised SystemExit: '0'")


def test_what_is_not_implemented_is_no_failure():
    def dense_only(x, weight, bias):
        if not isinstance(weight, np.ndarray):
            raise NotImplementedError
        return ops.linear(x, weight, bias)

    row = row_of("linear", dense_only, examples=40)
    assert row.status == "ok" and 0 < row.left_out < row.examples
    assert row_of("add", None).status == "not implemented"


def test_an_answer_that_changes_is_still_told(lockstep):
    """By hand: a port that is right every other time has no example that always fails."""
    turn = count()
    row = row_of("heads_first", lambda x: ops.heads_first(x) + np.float32(next(turn) % 2))
    assert row.status == "differs"


MODULE = """
    import numpy as np

    def silu(x):
        return x / (1 + np.exp(-x))

    class other:
        @staticmethod
        def scale(x, *, by):
            return x * np.float32(by) + 1
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_operations.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "my_operations"
    sys.modules.pop("my_operations", None)


@long
def test_a_module_of_the_users_own(lockstep, module):
    said = lockstep("conformance", "--backend", module, "--examples", 30)
    assert said.code == 0, said
    assert "44 operations: " in said.out and "1 ok" in said.out
    assert "not implemented: add, add_lora" in said.out


def test_a_wrong_module_says_how_to_see_it_again(lockstep, module):
    said = lockstep("conformance", "--backend", f"{module}:other", "--op", "scale")
    assert said.code == 1
    assert "  x = np.array([[[0.0]]], np.float32)\n  scale(x, by=2.0)\n" in said.out
    assert f"again: lockstep conformance --backend {module}:other --op scale" in said.out


@pytest.mark.parametrize(
    ("arguments", "core"),
    [
        (["--op", "rms_nrm"], "'rms_nrm' is no operation; near it: rms_norm"),
        (["--examples", "0"], "--examples: 0, but should be 1 to 100000"),
        (["--backend", "no_such_module_here"], "cannot be imported: ModuleNotFoundError"),
        (["--backend", "../x"], "../x is no name of a module"),
        (["--backend", "json"], "json: has none of the 44 operations asked for"),
        (["--backend", "cpu", "--exec", "true"], "not allowed with argument"),
    ],
)
def test_bad_input_is_one_line(refuses, arguments, core):
    refuses(core, "conformance", *arguments)


def test_nothing_is_left_in_the_working_folder(tmp_path):
    words = ["-m", "lockstep.parity.cli", "conformance", "--backend", "cpu", "--op", "add"]
    run = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stderr == "" and [*tmp_path.iterdir()] == []


def test_without_hypothesis(refuses, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    refuses("pip install 'lockstep-parity[conformance]'", "conformance", "--op", "add")
