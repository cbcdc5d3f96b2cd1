"""Runs compared by their sketches: by law, planted bugs; by loop, what sketches say of tensors."""

import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.diff import diff
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.parts import Parts
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.sketches.judging import judged
from lockstep.parity.sketches.reading import reads_of
from lockstep.parity.sketches.sketch import sketch
from lockstep.parity.sketches.sketched import entry_of
from lockstep.parity.sketches.writing import SketchFile, sketch_dump
from lockstep.parity.writers.lockstep_dump import TraceWriter
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from tests.parity import builders
from tests.parity.builders import planted

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return builders.checkpoint(tmp_path_factory.mktemp("dense"))


def traced(model, path, **options):
    trace_run(model, TOKENS, path, **{"globs": None, "decode": 0} | options)
    return path


def late_softmax(scores, mask, *, masked_row):
    return ops.softmax(scores * np.float32(1.01), mask, masked_row=masked_row)


@pytest.fixture(scope="module")
def runs(dense, tmp_path_factory):
    """A right run and one with a wrong softmax, whole and sketched."""
    folder = tmp_path_factory.mktemp("runs")
    right, bad = reference.load(dense), planted(dense, softmax=late_softmax)
    return {name: traced(model, folder / name.replace(" ", "."), sketched="sketch" in name)
            for name, model in (("right", right), ("right sketch", right),
                                ("bad", bad), ("bad sketch", bad))}  # fmt: skip


def test_a_sketch_made_while_running_is_that_of_the_tensor(runs, tmp_path):
    sketch_dump(open_dump(runs["right"]), tmp_path / "again")
    found, wanted = runs["right sketch"].read_bytes(), (tmp_path / "again").read_bytes()
    assert found[len(found) // 2 :] == wanted[-(len(found) - len(found) // 2) :]
    result = diff(runs["right sketch"], tmp_path / "again")
    assert {tap.max_abs for tap in result.taps} == {0.0}
    assert "42 of 42 taps hold the same bits on both sides, by their hashes" in result.notes
    assert len(found) < 42 * 700 < runs["right"].stat().st_size


@pytest.mark.parametrize("left", ["right sketch", "right"])
@pytest.mark.parametrize("right", ["bad sketch", "bad"])
def test_sketches_part_where_the_tensors_do(runs, left, right):
    """By loop: the first tap that differs, and about how far, as of whole tensors."""
    whole = {tap.name: tap for tap in diff(runs["right"], runs["bad"]).taps}
    found = diff(runs[left], runs[right])
    assert found.first_divergence.name == "model.layers.0.self_attn.probs"
    for tap in found.taps:
        assert tap.status == whole[tap.name].status
        if tap.status == "differs":
            assert tap.rms_rel == pytest.approx(whole[tap.name].rms_rel, rel=0.7)


def test_suspects_are_the_first_wrong_and_what_it_reads(dense, runs):
    """By hand: probabilities are made of scores."""
    result = diff(runs["right sketch"], runs["bad sketch"], reads=reads_of(dense))
    path = "model.layers.0.self_attn."
    assert result.suspects == [f"{path}scores", f"{path}probs"]
    assert result.to_json()["suspects"] == result.suspects


def test_without_a_model_they_are_the_layer_as_far_as_it_is_computed(runs):
    result = diff(runs["right sketch"], runs["bad sketch"])
    found = [name.removeprefix("model.layers.0.") for name in result.suspects]
    assert found[:2] == ["model.embed_tokens", "input_layernorm"]
    assert found[-2:] == ["self_attn.scores", "self_attn.probs"] and len(found) == 11


def test_the_suspects_whole_are_enough_to_name_the_operation(dense, runs, tmp_path):
    model = reference.load(dense)
    chosen = diff(runs["right sketch"], runs["bad sketch"], reads=reads_of(model)).suspects
    sides = [traced(one, tmp_path / name, globs=chosen) for name, one in
             (("l", model), ("r", planted(dense, softmax=late_softmax)))]  # fmt: skip
    first = diff(*sides, model=model).first_divergence
    assert (first.name, first.op, first.status) == (chosen[-1], "softmax", "diverged")


def test_what_a_fused_port_has_not_is_looked_through(dense, runs, tmp_path):
    """By hand: without scores and probabilities the context is made of queries, keys and values."""
    globs = ["*_proj", "*_rope", "*_norm", "*.context", "*.residual"]
    both = {"l": reference.load(dense), "r": planted(dense, softmax=late_softmax)}
    names = [traced(model, tmp_path / name, globs=globs, sketched=True)
             for name, model in both.items()]  # fmt: skip
    found = [name.rpartition(".")[2] for name in diff(*names, reads=reads_of(dense)).suspects]
    assert found == ["v_proj", "q_rope", "k_rope", "context"]


def test_a_right_run_of_another_backend_is_at_parity(dense, runs, tmp_path):
    port = builders.pair(dense)[1]
    result = diff(runs["right sketch"], traced(port, tmp_path / "port", sketched=True))
    assert result.verdict == "parity" and result.compared == 36 and result.suspects == []


def test_a_step_s_suspects_are_named_without_the_step(dense, tmp_path):
    def late(x, positions, frequencies, *, factor):
        return ops.rope(x, positions + (positions.shape[1] == 1), frequencies, factor=factor)

    sides = [
        traced(model, tmp_path / name, decode=1, sketched=True, globs=["*_norm", "*_rope"])
        for name, model in (("l", reference.load(dense)), ("r", planted(dense, rope=late)))
    ]
    result = diff(*sides, reads=reads_of(dense))
    assert result.first_divergence.name == "step.1/model.layers.0.self_attn.q_rope"
    assert [name.rpartition(".")[2] for name in result.suspects] == [
        "q_norm", "k_norm", "q_rope", "k_rope",
    ]  # fmt: skip


def two(tmp_path, left, right, **about):
    paths = []
    for name, tensors in (("l", left), ("r", right)):
        with SketchFile(
            tmp_path / name, **{"dtype": "float32", "tokens": [1, 2, 3]} | about
        ) as file:
            for tap, value in tensors.items():
                file(tap, value)
        paths.append(tmp_path / name)
    return diff(*paths)


RIGHT = np.random.default_rng(5).standard_normal((1, 3, 16)).astype(np.float32)


@pytest.mark.parametrize(
    "port, said",
    [
        (np.where(np.equal(RIGHT, RIGHT[0, 1, 4]), np.nan, RIGHT), "1 of 48 are NaN"),
        (np.where(np.equal(RIGHT, RIGHT[0, 1, 4]), np.inf, RIGHT), "infinite values elsewhere"),
        (RIGHT[:, :2], "shape [1, 2, 16], but should be [1, 3, 16]"),
        (RIGHT.astype(np.int32), "stored as I32"),
        (RIGHT * np.float32([1, 1.5, 1])[:, None], "in [0, 1, :]"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, port, said):
    result = two(tmp_path, {"model.norm": RIGHT}, {"model.norm": port})
    assert result.verdict == "diverged" and said in result.first_divergence.place


def test_nan_on_both_sides_is_no_parity(tmp_path):
    bad = np.full_like(RIGHT, np.nan)
    assert two(tmp_path, {"model.norm": bad}, {"model.norm": bad}).verdict == "diverged"


def test_a_batch_axis_is_no_difference_and_heads_that_lie_otherwise_are_not_judged(tmp_path):
    heads = np.random.default_rng(1).standard_normal((1, 4, 3, 8)).astype(np.float32)
    left = {"model.norm": RIGHT, "model.layers.0.self_attn.q_rope": heads}
    right = {"model.norm": RIGHT[0], "model.layers.0.self_attn.q_rope": heads.swapaxes(1, 2)}
    result = two(tmp_path, left, right)
    assert [tap.status for tap in result.taps] == ["ok", "not judged"]
    assert "cannot be moved" in result.taps[1].place


@pytest.mark.parametrize("head", ["k_rope", "q_norm"])
def test_as_many_tokens_as_heads_may_lie_the_other_way(tmp_path, head):
    """By hand: nothing but the norms of parts tells it from a wrong run."""
    heads = np.random.default_rng(1).standard_normal((1, 3, 3, 8)).astype(np.float32)
    name, other = f"model.layers.0.self_attn.{head}", np.ascontiguousarray(heads.swapaxes(1, 2))
    left = {"model.norm": RIGHT, name: heads}
    for port, status in ((other, "not judged"), (other[0], "not judged"), (1.01 * other, "differs"),
                         (heads[:, ::-1], "differs"), (1.01 * heads, "differs")):  # fmt: skip
        assert two(tmp_path, left, {"model.norm": RIGHT, name: port}).taps[1].status == status


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_without_a_word_half_precision_is_judged_as_such(tmp_path, dtype):
    """By hand: a step of half precision lies between them; of float32 it would be much."""
    sides = {"model.norm": RIGHT.astype(dtype)}, {"model.norm": (RIGHT * 1.001).astype(dtype)}
    assert two(tmp_path, *sides, dtype="").verdict == "parity"
    assert two(tmp_path, *sides, dtype="float32").verdict == "diverged"


@pytest.mark.parametrize("off, status", [(0, "ok"), (1, "differs")])
def test_whole_numbers_are_equal_in_whatever_width(off, status):
    """By hand: ids of experts, in 64 bits and in 32, and one of them off by one."""
    ids = np.random.default_rng(2).integers(0, 128, (600, 8))
    port = ids.astype(np.int32)
    port[300, 3] += off
    assert judged("x.ids", entry_of(port), entry_of(ids), 2.0**-17).status == status
    assert judged("x.ids", entry_of(port), entry_of(ids.astype(np.int32)), 1).status == status


def test_a_tensor_without_numbers_is_sketched(tmp_path):
    for shape in ((3, 0), (0, 3), (2, 0, 4)):
        assert entry_of(np.zeros(shape, np.float32)).numbers.tolist() == [0.0]
    tensors = {"logits": RIGHT, "x.empty": np.zeros((3, 0), np.float32)}
    assert two(tmp_path, tensors, tensors).verdict == "parity"


def test_positions_are_numbers_and_not_text(tmp_path):
    """By hand: the same list with other blanks, another list, and one beyond the prompt."""

    def of(left, right):
        for name, said in (("l", left), ("r", right)):
            with SketchFile(tmp_path / name, tokens=[1, 2, 3, 4], positions=said) as file:
                file("logits", RIGHT)
        return diff(tmp_path / "l", tmp_path / "r").verdict

    assert of("[0, 1, 2]", "[0,1,2]") == "parity"
    with pytest.raises(InputError, match="has other positions of the prompt than"):
        of("[0, 1, 2]", "[1, 2, 3]")
    with pytest.raises(InputError, match="must rise, and be in the prompt"):
        of("[0, 1, 9]", "[0, 1, 9]")


def test_nothing_compared_is_an_error(tmp_path):
    with pytest.raises(InputError, match="nothing was compared"):
        two(tmp_path, {"model.norm": RIGHT}, {"logits": RIGHT})
    with pytest.raises(InputError, match="only zeros"):
        two(tmp_path, {"model.norm": 0 * RIGHT}, {"model.norm": 0 * RIGHT})


def test_other_tokens_or_positions_are_refused(dense, runs, tmp_path):
    some = traced(reference.load(dense), tmp_path / "some", at="last:2", sketched=True)
    with pytest.raises(InputError, match="a sketch cannot be cut"):
        diff(runs["right sketch"], some)
    whole = traced(reference.load(dense), tmp_path / "whole", at="last:2")
    assert diff(some, whole).verdict == "parity"
    with SketchFile(tmp_path / "other", dtype="float32", tokens=[7]) as file:
        file("logits", RIGHT)
    with pytest.raises(InputError, match="token ids differ"):
        diff(runs["right sketch"], tmp_path / "other")


def test_sketches_are_refused_where_tensors_are_needed(dense, runs):
    with pytest.raises(InputError, match="holds sketches"):
        open_dump(runs["bad sketch"])
    with pytest.raises(InputError, match="cannot be computed again"):
        diff(runs["right sketch"], runs["bad sketch"], model=reference.load(dense))


def test_unequal_prompts_are_refused(dense, tmp_path):
    model, rows = reference.load(dense), [[1, 2], [3]]
    with pytest.raises(InputError, match="unequal prompts"):
        trace_run(model, rows, tmp_path / "x", globs=None, decode=0, sketched=True)
    trace_run(model, rows, tmp_path / "whole", globs=None, decode=0)
    with pytest.raises(InputError, match="unequal prompts"):
        sketch_dump(open_dump(tmp_path / "whole"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int32]
)
@pytest.mark.parametrize("shape", [(1, 300, 700), (2, 70_000), (3, 4, 5, 6)])
def test_pieces_make_the_sketch_of_the_whole(dtype, shape):
    """By loop: sums of the whole tensor at once."""
    x = (np.random.default_rng(3).standard_normal(shape) * 100).astype(dtype)
    wide = x.astype(np.float64)
    found = sketch(x)
    assert found[0] == np.abs(wide).max()
    rows = found[1:].reshape(-1, 4) * found[0]
    axis = next(axis for axis, size in enumerate(shape) if size > 1)
    first = wide.take(range(max(shape[axis] // 8, 1)), axis)
    assert rows[0][0] == pytest.approx(np.sqrt((first**2).sum()))
    last = wide[..., shape[-1] * (min(shape[-1], 8) - 1) // min(shape[-1], 8) :]
    assert rows[-1][0] == pytest.approx(np.sqrt((last**2).sum()))


def test_a_sketch_takes_a_piece_of_memory_and_not_the_tensor():
    """A tensor of 32 MB that is made as it is read."""
    row = np.linspace(-1, 1, 1 << 12, dtype=np.float32)

    def read(start, stop, room):
        return np.resize(row, stop - start)

    tensor = Parts((1, 1 << 11, 1 << 12), row.dtype, read)
    tracemalloc.start()
    entry_of(tensor)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tensor.nbytes == 1 << 25 and peak < 1 << 23


def test_a_run_whose_activations_do_not_fit_is_sketched(tmp_path):
    """By law: twelve layers take no more than one."""
    folder = builders.checkpoint(
        tmp_path / "deep", num_hidden_layers=12, max_position_embeddings=600
    )
    model, tokens = builders.pair(folder)[1], [1, 2, 3, 4] * 128
    total = 0

    def count(name, value):
        nonlocal total
        total += np.asarray(value).nbytes

    model.forward([tokens], trace=count)
    tracemalloc.start()
    trace_run(model, tokens, tmp_path / "x", globs=None, decode=0, sketched=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 16 << 20 and peak < 8 << 20
    assert (tmp_path / "x").stat().st_size < total / 200


@pytest.mark.parametrize(
    "key, value",
    [("tensors", "[]"), ("tensors", json.dumps([["x", "F32", [2], "00", "", 0]])), ("version", "2"),
     ("tensors", json.dumps([["x", "F32", [2], "0" * 16, "", -1]]))],
)  # fmt: skip
def test_a_file_that_does_not_fit_together_is_refused(tmp_path, key, value):
    said = {"format": "lockstep-sketch", "version": "1", "tensors": "[]", key: value}
    with TraceWriter(tmp_path / "x") as file:
        file.add("sketches", [0.0], shape=[1])
        file.header["__metadata__"] = said
    with pytest.raises(InputError):
        diff(tmp_path / "x", tmp_path / "x")
