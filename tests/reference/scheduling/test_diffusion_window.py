"""The window of WeDLM's decoder and its settings. By hand."""

import math

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.diffusion_options import (
    VARIANTS,
    DiffusionOptions,
    variant_named,
)
from lockstep.reference.scheduling.diffusion_window import Window


def window(*, start=10, size=4, room=99, left=50, stop=()):
    return Window(start, size, room=room, left=left, stop=stop)


def test_known_tokens_come_first_and_keep_their_positions():
    one = window()
    assert one.inputs(0) == ([0, 0, 0, 0], [10, 11, 12, 13])
    one.fill([3, 1], [7, 8])
    assert one.order == [1, 3, 0, 2] and one.masks == [0, 2] and one.leading == 0
    assert one.inputs(0) == ([8, 7, 0, 0], [11, 13, 10, 12])


def test_what_is_known_up_to_the_first_mask_can_be_final():
    one = window()
    one.fill([0, 1, 3], [5, 6, 7])
    assert one.leading == 2 and one.commit(2) == [5, 6]
    assert (one.start, one.slots, one.left) == (12, [None, 7], 48)
    one.fill([0], [8])
    assert one.leading == 2  # all of it


def test_masks_are_appended_as_far_as_there_is_room():
    assert window(size=9, room=13).slots == [None] * 3
    one = window(room=15)
    one.refill(4)
    assert len(one.slots) == 5
    one.fill([0, 1], [1, 2])
    one.commit(2)
    one.refill(4)
    assert (one.start, len(one.slots)) == (12, 3)
    assert window(room=10).slots == []


def test_a_stop_id_empties_it():
    one = window(stop={6})
    one.fill([0, 1, 2], [5, 6, 7])
    assert one.commit(3) == [5, 6]
    assert (one.start, one.slots, one.left) == (12, [], 0)
    one.refill(3)
    assert one.slots == []


def test_so_does_the_last_token_that_is_wanted():
    one = window(left=2, stop={7})
    one.fill([0, 1, 2], [5, 6, 7])
    assert one.commit(3) == [5, 6]
    assert (one.start, one.slots, one.left) == (12, [], 0)
    assert window(left=0).slots == []


def test_the_settings_of_each_engine():
    tencent, port = VARIANTS["tencent"], VARIANTS["mlx-port"]
    assert (tencent.threshold, tencent.position_penalty, tencent.penalty) == (
        0.4,
        0.02,
        "first-mask",
    )
    assert (port.threshold, port.position_penalty, port.penalty) == (0.3, 0.01, "window")
    assert (tencent.extends, tencent.stops, port.extends, port.stops) == (False, True, True, False)
    with pytest.raises(InputError, match="variant='fork', but should be one of tencent, mlx-port"):
        variant_named("fork")


@pytest.mark.parametrize(
    ("core", "changes"),
    [
        ("window=0, but should be from 1 to 1024", {"window": 0}),
        ("window=1025", {"window": 1025}),
        ("threshold=-0.1, but should be 0 or more, or none", {"threshold": -0.1}),
        ("threshold=nan", {"threshold": math.nan}),
        ("threshold=inf", {"threshold": math.inf}),
        ("position_penalty=-1, but should be 0 or more", {"position_penalty": -1}),
        ("position_penalty=nan", {"position_penalty": math.nan}),
        ("penalty=last, but should be one of first-mask, window, tempered", {"penalty": "last"}),
        ("temperature=0, but should be above 0", {"temperature": 0, "penalty": "tempered"}),
    ],
)
def test_settings_that_are_refused(core, changes):
    with pytest.raises(InputError, match=core):
        DiffusionOptions(0, VARIANTS["tencent"], **changes)


def test_only_the_tempered_penalty_looks_at_the_temperature():
    both = [
        DiffusionOptions(0, VARIANTS["tencent"], penalty=penalty, temperature=0.5).heat
        for penalty in ("first-mask", "tempered")
    ]
    assert both == [1.0, 0.5]
