"""Golden traces: what they let pass and notice, by law and by hand, and hostile files."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from lockstep.fast.model import load as load_fast
from lockstep.parity.arrays import to_numpy
from lockstep.parity.diffing.plain import rounding
from lockstep.parity.plugin.given import dump_of, reference_dump
from lockstep.parity.plugin.golden import (
    compared,
    entry_of,
    golden_of,
    judged,
    read_golden,
    write_golden,
)
from lockstep.parity.plugin.held import held
from lockstep.parity.plugin.shelf import Shelf
from lockstep.parity.writers.safetensors_stream import Planned, write_safetensors
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import load
from tests.sampled import sampled

ROOT = Path(__file__).parents[3]
TOKENS = [3, 14, 15, 9, 26, 5, 35, 8]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "golden.safetensors"


def stored(path, tensors, **said):
    write_golden(golden_of(dump_of(tensors, **said), path))
    return read_golden(path)


def statuses(golden, tensors, dtype="float32"):
    return [tap.status for tap in compared(golden, dump_of(tensors), dtype)]


def random(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_the_same_bits_agree(path, dtype):
    x = random((1, 5, 24), dtype=dtype)
    golden = stored(path, {"b": x, "a": x[..., ::-1]}, tokens=TOKENS)
    assert list(golden.entries) == ["b", "a"]
    assert (golden.dtype, json.loads(golden.tokens or "")) == (np.dtype(dtype).name, TOKENS)
    assert statuses(golden, {"a": x[..., ::-1], "b": x}) == ["ok", "ok"]


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (1, 1, 1), (5,), (2, 1, 9, 3, 2)])
def test_tensors_of_any_shape_are_kept(path, shape):
    x = random(shape)
    golden = stored(path, {"x": x, "bool": x > 0})
    assert statuses(golden, {"x": x, "bool": x > 0}) == ["ok", "ok"]
    changed = "differs" if x.size else "ok"
    assert statuses(golden, {"x": -x, "bool": x <= 0}) == [changed, changed]


@sampled(0)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_rounds_otherwise_agrees(dtype):
    """By witness: other implementations of the same models, in the same dtype.

    In bfloat16 the demo's router chooses other experts, which is no rounding.
    """
    models = [ROOT / "parity/demo/checkpoint", *(ROOT / "tests/witnesses/models").iterdir()]
    models += [ROOT / "parity/demo/gemma4"] * (dtype == "float32")
    count = 0
    for path in models:
        golden = golden_of(dump_of(dict(taps(load(path, dtype=dtype))), dtype=dtype), path)
        for backend in ("cpu", "mlx"):
            port = dump_of(dict(taps(load_fast(path, dtype=dtype, backend=backend))))
            judged = compared(golden, port, dtype)
            assert {tap.status for tap in judged} == {"ok"}, (path, backend)
            count += len(judged)
    assert count > 1000


def taps(model):
    found = []
    tokens = [[*range(1, 13)]]
    model.forward(tokens, trace=lambda name, value: found.append((name, np.array(to_numpy(value)))))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gate_is_where_rounding_ends(path, dtype):
    """By law: a fifth of what rounding may do passes, three times that does not."""
    kind = np.float32  # stored wide, judged as told
    for seed in range(30):
        x, noise = random((1, 6, 64), seed, kind), random((1, 6, 64), seed + 99, kind)
        golden = stored(path, {"x": x}, dtype=dtype)
        for share, status in ((0.2, "ok"), (3.0, "differs")):
            port = x + share * rounding(dtype) * noise
            assert statuses(golden, {"x": port}, dtype) == [status], (seed, share)


def everywhere(draw, x):
    return draw.standard_normal(x.shape)


def a_factor(draw, x):
    return x


def in_one_token(draw, x):
    return everywhere(draw, x) * (np.arange(12) == 5)[:, None]


def in_one_feature(draw, x):
    return everywhere(draw, x) * (np.arange(256) == 77)


def in_one_number(draw, x):
    return np.outer(np.arange(12) == 5, np.arange(256) == 77)[None] * 1.0


# As docs/parity/ci.md has it.
TABLE = [(everywhere, 0.5, 2), (a_factor, 0.5, 2), (in_one_token, 1, 8), (in_one_feature, 4, 48),
         (in_one_number, 32, 64)]  # fmt: skip


@pytest.mark.parametrize(("change", "passes", "noticed"), TABLE)
def test_what_is_noticed_is_as_the_page_says(change, passes, noticed):
    """By law: in none of 100 draws up to the one size, in all from the other."""
    limit, found = rounding("float32"), {passes: 0, noticed: 0}
    for seed in range(100):
        draw = np.random.default_rng(seed)
        x = draw.standard_normal((1, 12, 256))
        entry, error = entry_of(x), change(draw, x)
        for size in found:
            port = x + size * limit * error
            found[size] += judged("x", port, entry, "float32", stored=True).status == "differs"
    assert found == {passes: 0, noticed: 100}


def test_a_small_row_is_not_hidden_by_a_large_one(path):
    """By law: the first token of many models is a thousand times larger than the others."""
    x = random((1, 8, 64))
    x[0, 0] *= 1e4
    golden = stored(path, {"x": x})
    port = x.copy()
    port[0, 5] *= 1.01
    (tap,) = compared(golden, dump_of({"x": port}), "float32")
    assert tap.rms_rel < rounding("float32") and tap.status == "differs"
    assert tap.place == "in [0, 5, :]"


def test_a_layer_takes_a_few_kilobytes(path, plain):
    dump = reference_dump(load(plain), TOKENS)
    write_golden(golden_of(dump, path))
    assert path.stat().st_size / 2 < 8000  # of 2 layers, with the head


def test_masked_scores_agree_and_a_moved_mask_does_not(path):
    """By hand: minus infinity is right in scores, where it was."""
    scores = np.where(np.tri(6, dtype=bool), random((1, 2, 6, 6)), np.float32(-np.inf))
    golden = stored(path, {"scores": scores})
    near = np.where(np.isfinite(scores), scores * np.float32(1 + 2e-7), scores)
    assert not np.array_equal(near, scores)
    assert statuses(golden, {"scores": near}) == ["ok"]
    near[0, 0, 5, 5] = -np.inf
    (tap,) = compared(golden, dump_of({"scores": near}), "float32")
    assert (tap.status, tap.place) == ("differs", "infinite values elsewhere than in the golden")


@pytest.mark.parametrize(
    ("port", "place"),
    [
        (np.full((2, 3), np.nan, np.float32), "6 of 6 are NaN"),
        (np.zeros((3, 2), np.float32), "shape [3, 2], but the golden's [2, 3]"),
        (np.zeros((2, 3)), "stored as F64, but in the golden as F32"),
        (np.full((2, 3), 1e-30, np.float32), "in [:, :]"),
    ],
)
def test_what_differs_is_said(path, port, place):
    """By hand, against zeros."""
    golden = stored(path, {"x": np.zeros((2, 3), np.float32)})
    (tap,) = compared(golden, dump_of({"x": port}), "float32")
    assert (tap.status, tap.place) == ("differs", place)


def test_whole_numbers_must_be_the_same(path):
    """By hand."""
    ids = np.arange(1000, 1012).reshape(3, 4)
    golden = stored(path, {"ids": ids})
    assert golden.dtype == "float32"  # what is judged in, where nothing rounds
    assert statuses(golden, {"ids": ids}) == ["ok"]
    assert statuses(golden, {"ids": ids + (ids == 1005)}) == ["differs"]


def test_another_dtype_is_a_change_unless_it_is_asked_for(path):
    x = random((1, 4, 32))
    golden = stored(path, {"x": x})
    port = {"x": x.astype(ml_dtypes.bfloat16)}
    assert statuses(golden, port) == ["differs"]
    assert statuses(golden, port, "bfloat16") == ["ok"]


def test_nothing_with_nan_becomes_a_golden(path):
    with pytest.raises(InputError, match="holds NaN"):
        golden_of(dump_of({"x": np.array([1, np.nan])}), path)


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_gone_or_new_is_a_failure(tmp_path, whole):
    shelf = Shelf(tmp_path / "test_it.py", refresh=True, say=lambda line: None)
    path = shelf.place("run")
    x = {name: random((2, 3), seed) for seed, name in enumerate("012")}
    shelf.renew(path, dump_of(x, tokens=[1, 2]), whole=whole, dtype=None)
    result, dtype = held(path, dump_of(x, tokens=[1, 2]), whole=whole, dtype=None)
    assert (result.verdict, result.notes, dtype) == ("parity", [], "float32")
    other = dump_of({"0": x["0"], "1": x["1"], "3": x["2"]}, tokens=[1, 3])
    result, _ = held(path, other, whole=whole, dtype=None)
    assert result.notes == [
        "the prompt is another one: the token ids differ",
        "1 tensor of the golden not dumped: '2'",
        "1 tensor dumped that the golden has not: '3'",
    ]


def test_a_whole_golden_tells_the_very_place(tmp_path):
    """By hand."""
    shelf = Shelf(tmp_path / "test_it.py", refresh=True, say=lambda line: None)
    path, x = shelf.place("run"), random((1, 2, 8))
    shelf.renew(path, dump_of({"logits": x}), whole=True, dtype=None)
    port = x.copy()
    port[0, 1, 3] = 7
    result, _ = held(path, dump_of({"logits": port}), whole=True, dtype=None)
    assert result.first_divergence.place.startswith("first at [0, 1, 3]: 7, but should be ")
    for whole, said in ((False, "holds whole tensors"), (True, "")):
        if said:
            with pytest.raises(InputError, match=said):
                held(path, dump_of({"logits": x}), whole=whole, dtype=None)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 81, "a\nb", "C:x", None])
def test_a_name_leads_nowhere_else(tmp_path, name):
    with pytest.raises(InputError, match="no name of a golden"):
        Shelf(tmp_path / "test_it.py", refresh=False, say=print).place(name)


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "goldens").mkdir()
    target = tmp_path / "precious"
    target.write_text("kept")
    shelf = Shelf(tmp_path / "test_it.py", refresh=True, say=print)
    shelf.place("run").symlink_to(target)
    with pytest.raises(InputError, match="left as it is"):
        shelf.renew(shelf.place("run"), dump_of({"x": np.ones(3)}), whole=False, dtype=None)
    assert target.read_text() == "kept"


GOOD = ["x", "F32", [2], "0" * 16, ""]
HOSTILE = {
    "another format": {"format": "lockstep-trace"},
    "another version": {"version": "2"},
    "no dtype": {"dtype": "float8"},
    "no index": {"tensors": "{"},
    "a deep index": {"tensors": "[" * 100_000},
    "an empty index": {"tensors": "[]"},
    "too little": {"tensors": json.dumps([GOOD, ["y", *GOOD[1:]]])},
    "twice": {"tensors": json.dumps([GOOD, GOOD])},
    "a negative size": {"tensors": json.dumps([["x", "F32", [-2], "0" * 16, ""]])},
    "a huge size": {"tensors": json.dumps([["x", "F32", [1 << 60], "0" * 16, ""]])},
    "many axes": {"tensors": json.dumps([["x", "F32", [2] * 30, "0" * 16, ""]])},
    "no digest": {"tensors": json.dumps([["x", "F32", [2], "../../etc/passwd", ""]])},
    "no dtype of a tensor": {"tensors": json.dumps([["x", "C64", [2], "0" * 16, ""]])},
    "a short entry": {"tensors": json.dumps([["x"]])},
}


def written(path, numbers, **about):
    said = {"format": "lockstep-golden", "version": "1", "dtype": "float32",
            "tensors": json.dumps([GOOD]), **about}  # fmt: skip
    planned = {"sketches": Planned("F32", numbers.shape, lambda: numbers)}
    write_safetensors(path, planned, metadata=said, done=lambda name: None)
    return path


def test_the_good_file_beside_the_hostile_ones_is_read(path):
    golden = read_golden(written(path, np.zeros(9, np.float32)))
    assert golden.entries["x"].shape == (2,)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_golden_is_refused(path, name):
    written(path, np.zeros(9, np.float32), **HOSTILE[name])
    with pytest.raises(InputError) as caught:
        read_golden(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sketch_that_is_not_finite_is_refused(path, value):
    """A limit that is NaN or infinite would let all pass."""
    with pytest.raises(InputError, match="not finite"):
        read_golden(written(path, np.full(9, value, np.float32)))


def test_a_golden_whose_bytes_are_changed_is_read_or_refused(path):
    """By law: any byte may be any other; nothing but InputError may come of it."""
    good = written(path, np.zeros(9, np.float32)).read_bytes()
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        data = bytearray(good)
        for place in draw.integers(0, len(data), draw.integers(1, 4)):
            data[place] = draw.integers(0, 256)
        path.write_bytes(data[: draw.integers(1, len(data) + 1)] if draw.random() < 0.2 else data)
        try:
            read_golden(path)
        except InputError as error:
            refused += 1
            assert str(error).isprintable()
    assert 200 < refused < 400
