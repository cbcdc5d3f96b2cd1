"""Two dumps compared: what must never pass, what must never raise, and what is not judged.

By law, on random tensors under the names of a model; with --model on a real one.
"""

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.diff import diff
from lockstep.parity.diffing import without_model
from lockstep.parity.diffing.cautions import ALONE, SAME
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.dumps.tracing import trace_run
from lockstep.reference.checkpoint.errors import InputError

NAMES = ("model.embed_tokens", "model.layers.0.mlp.up_proj", "model.layers.0", "logits")
SHAPE = (1, 5, 32)


def dump(tensors=None, path="left", **changes) -> Dump:
    rng = np.random.default_rng(0)
    own = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in NAMES}
    tensors = (own if tensors is None else tensors) | changes
    tensors = {name: value for name, value in tensors.items() if value is not None}
    shapes = {name: value.shape for name, value in tensors.items()}
    about = {"format": "lockstep-trace", "version": "1", "tokens": "[1, 2, 3, 4, 5]"}
    return Dump(Path(path), shapes, tensors.__getitem__, about)


def changed(change) -> np.ndarray:
    value = dump().read("logits").copy()
    found = change(value)
    return value if found is None else found


def statuses(result) -> dict[str, str]:
    return {tap.name: tap.status for tap in result.taps}


def test_a_dump_is_on_a_par_with_itself_and_that_is_said():
    result = diff(dump(), dump(path="right"))
    assert (result.verdict, result.compared) == ("parity", 4)
    assert SAME in result.notes
    assert all(tap.own_error is None and tap.noise is None for tap in result.taps)
    assert any("no oracle" in line for line in result.to_json()["conventions"])


def test_rounding_is_no_difference_and_more_than_rounding_is():
    size = np.sqrt(np.mean(dump().read("logits") ** 2))
    noise = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32) * size
    for steps, verdict in ((1, "parity"), (1000, "diverged")):
        port = dump(logits=dump().read("logits") + noise * steps * 2.0**-23)
        assert diff(dump(), port).verdict == verdict


def put(index, value):
    return lambda x: x.__setitem__(index, value)


NOT_ALIKE = {
    "all NaN": lambda x: x.fill(np.nan),
    "one NaN": put((0, 4, 31), np.nan),
    "infinity": put((0, 0, 0), np.inf),
    "minus infinity": put((0, 0, 0), -np.inf),
    "zeros": lambda x: x.fill(0),
    "a constant": lambda x: x.fill(x.mean()),
    "sign": lambda x: -x,
    "rows swapped": lambda x: x[:, [1, 0, 2, 3, 4]],
    "a row repeated": lambda x: x[:, [0, 0, 2, 3, 4]],
    "shifted by one": lambda x: np.roll(x, 1, axis=1),
    "scaled": lambda x: x * np.float32(1.001),
    "offset": lambda x: x + np.float32(0.001),
    "one value": put((0, 2, 2), 1.0),
    "huge": lambda x: x * np.float32(1e30),
    "overflowing": lambda x: x.astype(np.float64) * 1e300,
    "a token less": lambda x: x[:, 1:],
    "a token more": lambda x: x[:, [0, *range(5)]],
    "a scalar": lambda x: x[0, 0, 0],
    "one column": lambda x: x[..., :1],
    "one token": lambda x: x[:, :1],
    "two of a batch": lambda x: x.repeat(2, 0),
    "turned": lambda x: x.transpose(0, 2, 1),
    "empty": lambda x: x[:, :0],
    "whole numbers": lambda x: x.astype(np.int8),
    "bits of bfloat16": lambda x: x.astype(ml_dtypes.bfloat16).view(np.uint16),
    "truth values": lambda x: x > 0,
}


@pytest.mark.parametrize("change", NOT_ALIKE.values(), ids=NOT_ALIKE)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_defect_is_never_passed_and_never_an_exception(change, swapped):
    sides = [dump(), dump(logits=changed(change))]
    result = diff(*(sides[::-1] if swapped else sides))
    assert result.verdict == "diverged"
    assert result.first_divergence.name == "logits"
    assert result.first_divergence.place
    assert statuses(result) == dict.fromkeys(NAMES[:3], "ok") | {"logits": "differs"}
    assert result.to_json()["taps"][-1]["status"] == "differs"


def test_equal_infinities_are_equal_and_equal_nans_are_not():
    infinite, unknown = changed(put((0, 0, 0), -np.inf)), changed(put((0, 0, 0), np.nan))
    assert diff(dump(logits=infinite), dump(logits=infinite)).verdict == "parity"
    assert diff(dump(logits=unknown), dump(logits=unknown)).verdict == "diverged"


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_an_infinity_on_both_sides_hides_nothing(infinite):
    """Masked scores are minus infinity on both sides, and another value may be off."""
    masked = changed(put((0, 0, 0), infinite))
    for change in (put((0, 2, 2), 1.0), put((0, 2, 2), -infinite), lambda x: x.__imul__(2)):
        wrong = masked.copy()
        change(wrong)
        for sides in ((masked, wrong), (wrong, masked)):
            result = diff(*(dump(logits=side) for side in sides))
            assert result.verdict == "diverged"
            assert result.first_divergence.place.startswith("first at [0, ")


def test_a_mask_alone_is_compared():
    """By hand: zeros and infinities, which are not zero everywhere."""
    mask = {"logits": np.triu(np.full((1, 5, 5), -np.inf, np.float32), 1)}
    result = diff(dump(mask), dump(mask))
    assert (result.verdict, result.compared) == ("parity", 1)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_another_precision_is_compared_by_its_values(name):
    cast = {tap: dump().read(tap).astype(np.dtype(name)) for tap in NAMES}
    result = diff(dump(), dump(cast))
    assert (result.verdict, result.compared) == ("parity", 4)
    assert diff(dump(), dump(cast, logits=-cast["logits"])).verdict == "diverged"


def test_numbers_in_another_byte_order_are_read_as_they_are_meant(tmp_path, monkeypatch):
    """By law: each sign is wrong; the wrong way round a sign is less than bfloat16's rounding."""
    monkeypatch.setattr(without_model, "MANY", 0)  # machine code, where there is Numba
    numbers = np.random.default_rng(0).standard_normal(SHAPE).astype(ml_dtypes.bfloat16)
    for side, sign in (("left", 1), ("right", -1)):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "logits.npy", (sign * numbers.astype(np.float32)).astype(">f4"))
    left, right = (open_dump(tmp_path / side) for side in ("left", "right"))
    assert diff(left, left).verdict == "parity"
    assert diff(left, right).verdict == "diverged"


def test_bfloat16_stored_as_float32_is_seen_and_said():
    cast = {n: dump().read(n).astype(ml_dtypes.bfloat16).astype(np.float32) for n in NAMES}
    result = diff(dump(), dump(cast))
    assert result.verdict == "parity"
    assert any("judged as that" in line for line in result.conventions)


def test_the_first_bad_place_is_told():
    port = changed(put((0, 3, 1), 9.0))
    place = diff(dump(), dump(logits=port)).first_divergence.place
    assert place.startswith("first at [0, 3, 1]: 9, but should be ")
    port[0, 4] = np.nan
    assert "; 32 of 160 are not finite" in diff(dump(), dump(logits=port)).first_divergence.place
    port[0, 3] = np.nan
    place = diff(dump(logits=port), dump(logits=port)).first_divergence.place
    assert place.startswith("first at [0, 3, 0]: nan on both sides; ")


def test_layouts_are_aligned_and_the_plan_is_told():
    heads = np.random.default_rng(2).standard_normal((1, 3, 5, 8)).astype(np.float32)
    tap = "model.layers.0.self_attn.q_norm"
    left = dump(**{tap: heads})
    right = dump(**{tap: heads.transpose(0, 2, 1, 3), "logits": dump().read("logits")[0]})
    result = diff(left, right)
    assert result.verdict == "parity"
    assert result.conventions == [
        "right: batch axis added in 1 tensors",
        "right: heads and tokens swapped in 1 tensors",
    ]


def test_names_of_other_engines_are_mapped_and_what_is_left_is_listed():
    mine = dump()
    theirs = {"inp_embd": mine.read(NAMES[0]), "ffn_up-0": mine.read(NAMES[1]),
              "l_out-0": mine.read(NAMES[2]), "ffn_moe_x-0": mine.read(NAMES[2])}  # fmt: skip
    result = diff(mine, dump(theirs, "port"))
    assert (result.verdict, result.compared) == ("parity", 3)
    assert result.unmatched == ["ffn_moe_x-0", "logits"]
    assert result.conventions == ["right: 3 of 4 names mapped to taps"]


EXPERT = "model.layers.0.mlp.experts.7"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [((3, 32), (4, 32)), ((3, 32), (3, 32)), ((7, 2), (1, 7, 2)), ((1, 5, 2), (2, 5, 2))],
)
def test_a_module_whose_rows_are_not_tokens_is_not_judged(mine, theirs):
    left, right = dump(**{EXPERT: np.ones(mine)}), dump(**{EXPERT: np.zeros(theirs)})
    result = diff(left, right)
    assert statuses(result)[EXPERT] == "not judged"
    assert (result.verdict, result.compared) == ("parity", 4)


@pytest.mark.parametrize("kind", [np.int64, bool, np.uint8, np.float32])
def test_a_module_that_is_no_tap_is_compared_if_its_rows_are_tokens(kind):
    ids = np.arange(5).reshape(1, 5, 1).astype(kind)
    for other, status in ((ids, "ok"), (ids[:, ::-1] + ids, "differs")):
        result = diff(dump(mine=ids), dump(mine=other.astype(kind)))
        assert statuses(result)["mine"] == status


def test_complex_numbers_are_not_judged():
    result = diff(dump(z=np.ones(SHAPE, np.complex64)), dump(z=np.zeros(SHAPE, np.complex64)))
    assert statuses(result)["z"] == "not judged"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (dump(), dump({"other": np.ones(SHAPE)})),
        (dump({EXPERT: np.ones((3, 2))}), dump({EXPERT: np.ones((4, 2))})),
        *[(dump({n: np.zeros(SHAPE) for n in NAMES}),) * 2],
        (dump({"logits": np.ones((1, 0, 4))}), dump({"logits": np.ones((1, 0, 4))})),
    ],
    ids=["no name in common", "not judged", "only zeros", "no tokens"],
)
def test_nothing_compared_is_an_error(left, right):
    with pytest.raises(InputError, match="nothing was compared"):
        diff(left, right)


def test_a_tap_of_zeros_is_pointed_at():
    zeros = {"logits": np.zeros(SHAPE, np.float32)}
    result = diff(dump(**zeros), dump(**zeros))
    assert "zero everywhere on both sides, which shows nothing: 1 tap" in result.notes


def about(**metadata) -> Dump:
    side = dump()
    return Dump(Path("right"), side.shapes, side.read, metadata)


def test_another_prompt_is_refused_at_its_first_token():
    with pytest.raises(InputError, match=r"token ids differ \(from position 2 on\)"):
        diff(dump(), about(tokens="[1, 2, 4, 4, 5]"))
    with pytest.raises(InputError, match="from position 5 on"):
        diff(dump(), about(tokens="[1, 2, 3, 4, 5, 6]"))


def test_a_side_without_tokens_is_trusted_and_that_is_said():
    result = diff(dump(), about())
    assert result.verdict == "parity"
    assert "right says no tokens: that both sides saw one prompt is taken on trust" in result.notes


def test_progress_is_told_a_tap_at_a_time():
    seen = []
    diff(dump(), dump(), progress=seen.append)
    assert seen == list(NAMES)


@pytest.fixture(scope="module")
def model():
    return reference.load(Path(__file__).parents[2] / "witnesses/models/untied_float32")


@pytest.fixture(scope="module")
def traced(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("traced") / "t.safetensors"
    trace_run(model, [3, 1, 4, 1, 5], path, globs=None, decode=2)
    return path


def altered(path: Path, name: str, change) -> Dump:
    side = open_dump(path)
    spoilt = change(side.read(name).copy())

    def read(wanted):
        return spoilt if wanted == name else side.read(wanted)

    return Dump(side.path, {**side.shapes, name: spoilt.shape}, read, side.about)


def test_with_a_model_every_tap_of_every_step_is_judged_by_its_own_error(model, traced):
    seen = []
    result = diff(traced, traced, model=model, progress=seen.append)
    assert result.verdict == "parity"
    assert {tap.status for tap in result.taps} == {"ok"}
    assert seen == [tap.name for tap in result.taps]
    assert result.compared == len(seen) == 3 * len([n for n in seen if n[:5] != "step."])
    assert all(tap.own_error <= 1e-5 and tap.noise > 0 for tap in result.taps)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj", "step.2/model.layers.0.residual"])
def test_with_a_model_only_the_wrong_tap_is_named(model, traced, name):
    port = altered(traced, name, lambda x: x * np.float32(1.01))
    result = diff(traced, port, model=model)
    assert (result.verdict, result.first_divergence.name) == ("diverged", name)
    assert statuses(result)[name] == "diverged"


def test_with_a_model_a_coarse_left_side_excuses_nothing(model, traced, tmp_path):
    half = reference.load(model.checkpoint.path, dtype="bfloat16")
    trace_run(half, [3, 1, 4, 1, 5], tmp_path / "half", globs=None, decode=0)
    name = "model.layers.1.mlp.down_proj"
    port = altered(traced, name, lambda x: x * np.float32(1.0001))
    assert diff(tmp_path / "half", port, model=model).first_divergence.name == name


def test_with_a_model_a_left_side_that_is_wrong_is_pointed_at(model, traced):
    wrong = altered(traced, "model.layers.1", lambda x: x * np.float32(3))
    result = diff(wrong, traced, model=model)
    said = "left is not what the model gives, in 1 tap from model.layers.1 on"
    assert any(note.startswith(said) for note in result.notes)
    assert not any("left is not" in note for note in diff(traced, traced, model=model).notes)


def test_with_a_model_sides_that_share_no_tap_are_not_said_to_be_the_same(model, traced):
    """By hand: right is right, and nothing of left was looked at."""
    side = open_dump(traced)
    other = Dump(side.path, {"mine": (1, 5, 2)}, lambda _: np.ones((1, 5, 2)), side.about)
    result = diff(other, traced, model=model)
    assert result.verdict == "parity" and "mine" in result.unmatched
    assert ALONE in result.notes and SAME not in result.notes


def test_other_tokens_after_the_prompt_are_pointed_at(model, traced):
    side = open_dump(traced)
    told = {**side.about, "decoded": f"[{side.decoded[0]}, {side.decoded[1] ^ 1}]"}
    other = Dump(side.path, side.shapes, side.read, told)
    said = "the sides were fed other tokens after the prompt, from step 2 on"
    assert said in diff(traced, other).notes
    assert said in diff(traced, other, model=model).notes
    assert said not in diff(traced, traced).notes


@pytest.mark.parametrize("change", ["whole numbers", "a token less", "all NaN", "one NaN"])
def test_with_a_model_a_spoilt_tap_diverges_and_nothing_raises(model, traced, change):
    name = "model.layers.0.self_attn.q_proj"
    port = altered(traced, name, lambda x: x if (y := NOT_ALIKE[change](x)) is None else y)
    result = diff(traced, port, model=model)
    assert result.first_divergence.name == name
    assert result.first_divergence.place


def test_with_a_model_what_it_does_not_make_is_not_judged(model, traced):
    side = open_dump(traced)
    more = Dump(side.path, {**side.shapes, "mine": (1, 5, 2)}, side.read, side.about)
    result = diff(more, more, model=model)
    assert statuses(result)["mine"] == "not judged"
    assert result.verdict == "parity"


def bare(path: Path, **about) -> Dump:
    side = open_dump(path)
    return Dump(side.path, side.shapes, side.read, about)


def test_with_a_model_somebody_must_say_the_prompt(model, traced):
    with pytest.raises(InputError, match="the prompt must be known, and neither side says it"):
        diff(bare(traced), bare(traced), model=model)
    with pytest.raises(InputError, match="the prompt must be known"):
        diff(bare(traced, tokens="[]"), bare(traced, tokens="[]"), model=model)
    assert diff(traced, bare(traced), model=model).verdict == "parity"


def test_a_step_out_of_nowhere_is_refused_before_anything_runs(model, traced):
    side = bare(traced, tokens="[3, 1, 4, 1, 5]")
    shapes = {**side.shapes, "step.99999/logits": (1, 1, 4)}
    far = Dump(side.path, shapes, side.read, side.about)
    with pytest.raises(InputError, match="holds step 99999, but only 3 of the steps"):
        diff(side, far, model=model)


def test_both_sides_are_read_a_tensor_at_a_time(tmp_path):
    size, count = 1 << 20, 30
    for side in ("left", "right"):
        with TraceFile(tmp_path / side, tokens=[1]) as file:
            for layer in range(count):
                file(f"model.layers.{layer}", np.full((1, 1, size // 4), layer + 1, np.float32))
    tracemalloc.start()
    assert diff(tmp_path / "left", tmp_path / "right").compared == count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count * size  # a tensor of each side, and what float64 makes of them
