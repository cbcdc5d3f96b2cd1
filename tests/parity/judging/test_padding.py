"""Batches in `check` and `diff`: what fills up a row is compared with nothing.

By law: rows alone and in a batch are the same to the reference, and a bug of one row is told with
it. By hand: the rows of small tensors.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.check import check
from lockstep.parity.diff import diff
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.padding import Padding, rows_named
from lockstep.reference.checkpoint.errors import InputError
from tests.sampled import sampled

WITNESSES = Path(__file__).parents[2] / "witnesses"
ROPE, LEARNED, EXPERTS = "llama/mistral_window", "gpt2/variant", "qwen3_moe/separate"
PROMPTS = [[3, 14, 15, 9], [26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 4, 6], [2, 7]]
LATER = [[5, 6], [7, 8], [9, 1]]
PADDING = Padding(tuple(map(len, PROMPTS)))
LAYER = "model.layers.0.self_attn"


def traced(name, side="right", spoil=None, fill=np.nan):
    """Return a dump of a batch and of two steps, each row computed alone, padding at `fill`.

    `spoil(row)` is called with each row's taps, to put a bug into it.
    """
    model, every = reference.load(WITNESSES / name), []
    for number, (prompt, later) in enumerate(zip(PROMPTS, LATER, strict=True)):
        cache, taps = model.make_cache(), {}
        for step, ids in enumerate([prompt, *([one] for one in later)]):
            prefix, found = f"step.{step}/" if step else "", {}
            model.forward([ids], cache=cache, trace=found.__setitem__)
            taps |= {prefix + tap: value for tap, value in found.items()}
        if spoil is not None:
            spoil(number, taps)
        every.append(taps)
    whole = {tap: np.concatenate([filled(tap, row[tap], side, fill) for row in every])
             for tap in every[0]}  # fmt: skip
    about = {"batch": json.dumps(PROMPTS), "padding": side, "batch_decoded": json.dumps(LATER)}
    return Dump(Path(side), {n: x.shape for n, x in whole.items()}, whole.__getitem__, about)


def filled(tap, x, side, fill):
    """Fill up the tokens of one row, and the keys of its scores and probabilities."""
    room, path = [(0, 0)] * x.ndim, tap.rpartition("/")[2]
    by_head = path.endswith((".q_rope", ".k_rope", ".scores", ".probs"))
    tokens = 2 if by_head else 1
    longest = max(map(len, PROMPTS))
    if "step." not in tap:
        missing = longest - x.shape[tokens]
        room[tokens] = (missing, 0) if side == "left" else (0, missing)
        x = np.pad(x, room, constant_values=fill)
    if path.endswith((".scores", ".probs")):
        step = int(tap[5]) if "step." in tap else 0
        keys, new = x[..., : x.shape[-1] - step], x[..., x.shape[-1] - step :]
        gap = [(0, 0)] * (x.ndim - 1)
        missing = longest - keys.shape[-1]
        gap.append((missing, 0) if side == "left" else (0, missing))
        value = 0.0 if path.endswith(".probs") else fill
        x = np.concatenate([np.pad(keys, gap, constant_values=value), new], axis=-1)
    return x


@sampled(2, "qwen3_moe/separate-sides0")
@pytest.mark.parametrize("sides", [("right", "right"), ("left", "left"), ("right", "left")])
@pytest.mark.parametrize("name", [ROPE, LEARNED, EXPERTS])
def test_padding_is_compared_with_nothing(name, sides):
    """One side holds NaN where the other holds numbers, or both do; each row is as it is alone."""
    left, right = traced(name, sides[0], fill=7.0), traced(name, sides[1])
    for model in (None, reference.load(WITNESSES / name)):
        found = diff(left, right, model=model)
        assert found.verdict == "parity" and found.compared > 80
        assert not [tap.name for tap in found.taps if tap.status == "not judged"]


def wrong_in_row(number, taps):
    if number == 1:
        taps[f"step.1/{LAYER}.q_rope"] = taps[f"step.1/{LAYER}.q_rope"] * np.float32(1.01)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_bug_of_one_row_is_told_with_it(side):
    left, right = traced(ROPE, "right"), traced(ROPE, side, wrong_in_row)
    found = diff(left, right, model=reference.load(WITNESSES / ROPE))
    first = found.first_divergence
    assert first.name == f"step.1/{LAYER}.q_rope" and first.shape == (3, 4, 1, 10)
    assert first.place.startswith("in row 1; first at [1, 0, 0, 0]: ")
    both = [first.name, f"step.1/{LAYER}.scores"]  # made of the right queries here
    assert [tap.name for tap in found.taps if tap.status == "diverged"] == both
    (tap,) = [tap for tap in diff(left, right).taps if tap.status == "differs"]
    assert tap.name == first.name
    assert tap.place.startswith("in row 1; of the tokens that fill nothing up, ")


def test_other_rows_are_refused():
    left = traced(LEARNED)
    other = replace(left, about=left.about | {"batch": json.dumps([*PROMPTS[:2], [2, 8]])})
    with pytest.raises(InputError, match="row 2 is not that of right: the token ids differ"):
        diff(left, other)
    longer = replace(left, about=left.about | {"batch": json.dumps([*PROMPTS, [2, 8]])})
    with pytest.raises(InputError, match="row 3 is not that of right"):
        diff(left, longer)
    empty = replace(left, about=left.about | {"batch": json.dumps([*PROMPTS[:2], []])})
    with pytest.raises(InputError, match="row 2 of batch is empty"):
        diff(empty, empty)


def test_what_steps_were_fed_must_be_said():
    left = traced(LEARNED)
    about = {key: value for key, value in left.about.items() if key != "batch_decoded"}
    silent = replace(left, about=about)
    model = reference.load(WITNESSES / LEARNED)
    assert diff(left, silent, model=model).verdict == "parity"
    with pytest.raises(InputError, match="holds step 2, but batch_decoded says what was fed in 0"):
        diff(silent, silent, model=model)


@sampled(4, "qwen3_moe/separate-bfloat16-cpu")
@pytest.mark.parametrize("backend", ["cpu", "mlx"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", [ROPE, LEARNED, EXPERTS, "gemma4/effective", "llama/llama_dynamic"]
)
def test_check_takes_rows_of_other_lengths(name, dtype, backend):
    port = fast.load(WITNESSES / name, backend=backend, dtype=dtype)
    model = reference.load(WITNESSES / name, dtype=dtype)
    tokens = PADDING.filled(PROMPTS)
    found = check(model, port, tokens, lengths=PADDING.lengths, decode=2)
    assert found.verdict == "parity" and found.compared > 80


class LastRowOff:
    """Operations of a port whose last row is wrong: `rope` turns it by one position more."""

    def __init__(self, ops):
        self.ops = ops

    def __getattr__(self, name):
        return getattr(self.ops, name)

    def rope(self, x, positions, frequencies, *, factor):
        return self.ops.rope(x, positions + np.array([[0], [0], [1]]), frequencies, factor=factor)


def test_check_says_the_row():
    port = fast.load(WITNESSES / ROPE, backend="cpu")
    port.ops = LastRowOff(port.ops)
    found = check(reference.load(WITNESSES / ROPE), port, PADDING.filled(PROMPTS),
                  lengths=PADDING.lengths)  # fmt: skip
    assert found.first_divergence.name == f"{LAYER}.q_rope"
    assert found.first_divergence.place.startswith("in row 2; first at [2, ")


def test_what_only_fills_up_cannot_fail(monkeypatch):
    """By law: a port that computes nothing right of padding is at parity."""
    port = fast.load(WITNESSES / ROPE, backend="cpu")
    stages = port.stages

    def spoilt(tokens, *, trace, **options):
        def noted(name, value):
            if name.endswith("q_proj") and value.shape[1] == PADDING.longest:
                value = value.copy()
                value[2, 2:] = np.nan
            trace(name, value)

        return stages(tokens, trace=noted, **options)

    monkeypatch.setattr(port, "stages", spoilt)
    model, tokens = reference.load(WITNESSES / ROPE), PADDING.filled(PROMPTS)
    assert check(model, port, tokens, lengths=PADDING.lengths).verdict == "parity"
    assert check(model, port, tokens, lengths=[4, 12, 12]).verdict == "diverged"


def test_the_command_takes_rows(lockstep):
    said = lockstep("check", WITNESSES / ROPE, "--tokens", "1,2,3", "--tokens", "4,5",
                    "--backend", "cpu", "--decode", 1)  # fmt: skip
    assert said.code == 0 and said.out.startswith("PARITY")
    said = lockstep("check", WITNESSES / ROPE, "--tokens", "1,2,3", "--tokens", "99")
    assert said.code == 2 and "token id 99" in said.err


def test_real_tokens_by_hand():
    padding = Padding((1, 3))
    x = np.arange(6.0).reshape(2, 3, 1)
    assert padding.real("model.norm", x).ravel().tolist() == [0, 3, 4, 5]
    assert padding.real("model.norm", x, row=1).ravel().tolist() == [3, 4, 5]
    assert padding.place("model.norm", x.shape, (2, 0)) == [1, 1, 0]
    keys = np.arange(18.0).reshape(2, 1, 3, 3)
    found = padding.real(f"{LAYER}.scores", keys)
    assert found.tolist() == [[[0, 0, 0]], [[9, 10, 11]], [[12, 13, 14]], [[15, 16, 17]]]
    assert padding.place(f"{LAYER}.scores", keys.shape, (3, 0, 1)) == [1, 0, 2, 1]
    assert padding.real("step.1/model.norm", x[:, :1]).ravel().tolist() == [0, 3]
    slots = padding.real(f"step.1/{LAYER}.cached_keys", np.arange(8.0).reshape(2, 1, 4, 1))
    assert slots.ravel().tolist() == [0, 3, 4, 5, 6, 7]


def test_rows_are_turned_by_hand():
    padding = Padding((1, 3))
    x = np.array([[8, 9, 1], [2, 3, 4]])[..., None]
    assert padding.turned("model.norm", x)[..., 0].tolist() == [[1, 8, 9], [2, 3, 4]]
    assert padding.turned("step.1/model.norm", x[:, :1])[..., 0].tolist() == [[8], [2]]
    keys = np.array([[8, 9, 1, 5], [2, 3, 4, 6]])[:, None, None]
    found = padding.turned(f"step.1/{LAYER}.probs", keys)
    assert found[:, 0, 0].tolist() == [[1, 8, 9, 5], [2, 3, 4, 6]]


def stored(lengths, side, fill, heads=2, swapped=False):
    """Return a dump of a cache behind a prompt and behind a step, filled up with `fill`."""
    longest = max(lengths)
    draw, whole = np.random.default_rng(4), {}
    slots = [draw.standard_normal((heads, one + 1, 4)).astype(np.float32) for one in lengths]
    for step, name in enumerate((f"{LAYER}.cached_keys", f"step.1/{LAYER}.cached_keys")):
        rows = []
        for one, length in zip(slots, lengths, strict=True):
            gap = (longest - length, 0) if side == "left" else (0, longest - length)
            prompt = np.pad(one[:, :length], [(0, 0), gap, (0, 0)], constant_values=fill)
            rows.append(np.concatenate([prompt, one[:, length : length + step]], axis=1))
        keys = np.stack(rows)
        whole[name] = np.swapaxes(keys, 1, 2) if swapped else keys
    rows = [[*range(1, length + 1)] for length in lengths]
    about = {"batch": json.dumps(rows), "padding": side, "batch_decoded": json.dumps([[5], [6]])}
    return Dump(Path(side), {n: x.shape for n, x in whole.items()}, whole.__getitem__, about)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("lengths", "swapped"), [
    ([2, 1], False), ([3, 1], False), ([1, 3], False), ([3, 1], True), ([4, 2], True),
])  # fmt: skip
def test_key_heads_are_not_taken_for_tokens(lengths, swapped, side):
    """By law: what fills up may be anything, with as many key heads as the longest row too."""
    ours, theirs = (stored(lengths, where, fill, swapped=swapped)
                    for where, fill in (("right", 7.0), (side, 0.0)))  # fmt: skip
    found = diff(ours, theirs)
    assert found.verdict == "parity" and found.compared == 2
    whole = {name: theirs.read(name).copy() for name in theirs.shapes}
    whole[f"step.1/{LAYER}.cached_keys"][0, -1, -1] += 1  # a real slot: row 0 or its last is
    assert diff(ours, replace(theirs, read=whole.__getitem__)).verdict != "parity"


def test_the_axis_of_slots_by_hand():
    padding = Padding((2, 1))
    keys = f"step.1/{LAYER}.cached_keys"
    assert padding.mask(keys, (2, 2, 3, 4)).tolist() == [[True] * 3, [True, False, True]]
    assert padding.mask(keys, (2, 3, 1, 4)).tolist() == [[True] * 3, [True, False, True]]
    assert padding.axis(f"step.1/{LAYER}.q_rope", (2, 2, 1, 4)) == 2
    assert padding.axis(f"{LAYER}.q_rope", (2, 2, 8, 4)) == 1


def test_words_on_rows():
    assert rows_named([1], 3) == "in row 1; " and rows_named([0, 2], 3) == "in rows 0, 2; "
    assert rows_named([0, 1, 2], 3) == rows_named([], 3) == ""


@pytest.mark.parametrize(
    ("core", "said"),
    [
        ("batch_decoded has 2 rows, but batch has 3", {"batch_decoded": [[5], [6]]}),
        ("batch_decoded must be a JSON list of lists", {"batch_decoded": [[10**30], [1], [1]]}),
        ("batch must be a JSON list of lists", {"batch": [[10**30], [1], [1]]}),
        ("step_lengths '[0, 1]' must be from 1 on", {"step_lengths": [0, 1]}),
    ],
)
def test_what_a_batch_is_said_to_be_fed_is_checked(core, said):
    """By hand: ids that no array holds, and rows that there are none of."""
    dump = traced(ROPE)
    about = dict(dump.about) | {key: json.dumps(one) for key, one in said.items()}
    port = replace(dump, about=about)
    with pytest.raises(InputError) as caught:
        diff(port, port, model=reference.load(WITNESSES / ROPE))
    assert core in str(caught.value)
