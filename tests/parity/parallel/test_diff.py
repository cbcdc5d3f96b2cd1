"""`diff` of the dumps of ranks. By law: parts of a whole are that whole, and a change is seen."""

import re

import numpy as np
import pytest

from lockstep.parity.parallel.diff import diff_ranks
from lockstep.parity.parallel.pieces import joined, put_together, taken_apart
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.parallel.model import load
from tests.parity.parallel.dumped import WITNESSES, dump_of, taps_of

PATHS = ("left", "right")


@pytest.mark.parametrize(
    ("name", "ranks"), [("models/untied_float32", 4), ("gpt2/original", 3)]
)  # fmt: skip
def test_ranks_are_compared_with_one_and_with_as_many(name, ranks):
    taps = taps_of(load(WITNESSES / name, ranks=ranks))
    (whole,) = taps_of(load(WITNESSES / name, ranks=1))
    right = [dump_of(one) for one in taps]
    for left in ([dump_of(whole)], right):
        result = diff_ranks(left, right, paths=PATHS)
        assert result.verdict == "parity" and result.unmatched == []
        names = {tap.name.partition(" of rank ")[0] for tap in result.taps}
        assert names == whole.keys() and result.compared > len(whole)


def test_a_change_is_seen_at_the_rank_that_has_it():
    """By hand: one number of rank 1's queries, and then of what both should have alike."""
    taps = taps_of(load(WITNESSES / "models/untied_float32", ranks=2), steps=())
    (whole,) = taps_of(load(WITNESSES / "models/untied_float32", ranks=1), steps=())
    right = [dict(one) for one in taps]
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.1.residual"):
        right[1][name] = right[1][name].copy()
        right[1][name][0, 3, 2] += 1
    for left in ([whole], taps):
        result = diff_ranks([dump_of(one) for one in left], [dump_of(one) for one in right],
                            paths=PATHS)  # fmt: skip
        wrong = {tap.name: tap.place for tap in result.taps if tap.status != "ok"}
        assert [*wrong] == ["model.layers.0.self_attn.q_proj of rank 1", "model.layers.1.residual"]
        assert (wrong["model.layers.1.residual"] or "").startswith("rank 1: first at [0, 3, 2]")


def test_files_in_the_wrong_order_are_noted():
    """By hand: two right ranks, each in the other's place, against one of the whole."""
    taps = taps_of(load(WITNESSES / "models/untied_float32", ranks=2), steps=())
    (whole,) = taps_of(load(WITNESSES / "models/untied_float32", ranks=1), steps=())
    for right, count in ((taps, 0), (taps[::-1], 2)):
        result = diff_ranks([dump_of(whole)], [dump_of(one) for one in right], paths=PATHS)
        assert sum("the file of rank" in line for line in result.notes) == count


def test_parts_are_put_together_and_taken_apart():
    """By hand: key heads that two ranks share, three matrices in one, a table that is filled up."""
    x = np.arange(12.0).reshape(1, 2, 6)
    heads = [x[..., :3], x[..., :3], x[..., 3:], x[..., 3:]]
    made = joined("model.layers.0.self_attn.k_proj", heads, 2, 6)
    assert made is not None and np.array_equal(made, x)
    fused = [x[..., [0, 2, 4]], x[..., [1, 3, 5]]]
    path = "transformer.h.0.attn.c_attn"
    made = joined(path, fused, 2, 6)
    assert made is not None and np.array_equal(made, x)
    assert joined("model.norm", heads[:3], 2, 6) is None
    for parts, name in ((heads, "model.layers.0.self_attn.k_proj"), (fused, path)):
        for rank, part in enumerate(parts):
            found = taken_apart(name, x, parts, rank)
            assert found is not None and np.array_equal(found, part)
    assert taken_apart(path, x, [x, x], 0) is None
    wide = [np.arange(4.0)[None, None], np.arange(4.0, 8.0)[None, None]]
    ((how, whole),) = put_together(wide, (1, 1, 6))
    assert how == "behind" and whole.tolist() == [[[0, 1, 2, 3, 4, 5]]]
    ((how, whole),) = put_together(wide, (1, 1, 4))
    assert how == "sum" and whole.tolist() == [[[4, 6, 8, 10]]]


def test_what_is_refused():
    taps = taps_of(load(WITNESSES / "models/untied_float32", ranks=2), steps=())
    dumps = [dump_of(one) for one in taps]
    other = [dump_of(taps[0]), dump_of(taps[1], tokens=[1])]
    with pytest.raises(InputError, match="says another prompt"):
        diff_ranks(dumps, other, paths=PATHS)
    nothing = dump_of({"x": np.ones(3, np.float32)})
    with pytest.raises(InputError, match="nothing was compared: no tap is in left too"):
        diff_ranks([nothing], dumps, paths=PATHS)
    untold = diff_ranks(dumps, [dump_of(one, tokens=None) for one in taps], paths=PATHS)
    assert any(re.match("right says no tokens", line) for line in untold.notes)
