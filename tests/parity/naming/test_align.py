"""Moves that lose nothing, by hand on small shapes; what only broadcasting would fit does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.parts import held
from lockstep.parity.naming.align import align, move_between
from lockstep.reference.checkpoint.errors import InputError

B, L, H, D = 2, 5, 3, 4


def dump(**tensors: np.ndarray) -> Dump:
    return named({name.replace("__", "."): value for name, value in tensors.items()})


def named(tensors: dict[str, np.ndarray]) -> Dump:
    shapes = {name: value.shape for name, value in tensors.items()}
    return Dump(Path("dump"), shapes, tensors.__getitem__)


SPARSE = "model.layers.0.mlp"


@pytest.mark.parametrize(
    ("below", "tap"),
    [
        ("gate", "experts"),
        ("experts.act_fn", "experts"),
        ("switch_mlp", "experts"),
        ("switch_mlp.up_proj", "experts"),
        ("gate_proj", "down_proj"),
        ("act_fn", "down_proj"),
    ],
)
def test_the_mlp_of_a_sparse_layer_is_what_its_experts_say_together(below, tap):
    names = align(named({name: np.zeros(1) for name in (f"{SPARSE}.{below}", SPARSE)})).names
    assert names[f"{SPARSE}.{tap}"] == SPARSE


@pytest.mark.parametrize("below", ["shared_expert", "shared_experts.up_proj", "shared_expert_gate"])
def test_with_shared_experts_an_mlp_is_more_than_each_part(below):
    names = [SPARSE, f"{SPARSE}.gate", f"{SPARSE}.experts", f"{SPARSE}.{below}"]
    found = align(named({name: np.zeros(1) for name in names})).names
    assert found[SPARSE] == SPARSE and f"{SPARSE}.down_proj" not in found
    assert found[f"{SPARSE}.experts"] == f"{SPARSE}.experts"


def test_the_taps_of_the_model_decide_it_where_they_are_known():
    port = named({SPARSE: np.zeros(1)})
    assert [*align(port, known=[f"{SPARSE}.experts"]).names] == [f"{SPARSE}.experts"]
    assert [*align(port, known=[f"{SPARSE}.down_proj"]).names] == [f"{SPARSE}.down_proj"]
    both = named({name: np.zeros(1) for name in (f"{SPARSE}.experts", SPARSE)})
    assert align(both).names == {f"{SPARSE}.experts": f"{SPARSE}.experts"}


def moved(shape, wanted):
    """Align numbers of one shape to another; return the plan and what came out."""
    numbers = np.arange(np.prod(shape)).reshape(shape)
    aligned = align(dump(logits=numbers))
    return aligned.read("logits", wanted), numbers, aligned.plan


@pytest.mark.parametrize(
    ("shape", "wanted", "truth", "plan"),
    [
        ((B, L, D), (B, L, D), lambda x: x, []),
        ((L, D), (1, L, D), lambda x: x[None], ["batch axis added in 1 tensors"]),
        (
            (B, L, H * D),
            (B, H, L, D),
            lambda x: x.reshape(B, L, H, D).transpose(0, 2, 1, 3),
            ["heads split and brought before tokens in 1 tensors"],
        ),
        (
            (L, H * D),
            (1, H, L, D),
            lambda x: x.reshape(1, L, H, D).transpose(0, 2, 1, 3),
            ["batch axis added, heads split and brought before tokens in 1 tensors"],
        ),
        (
            (L, B, H, D),
            (B, L, H, D),
            lambda x: x.transpose(1, 0, 2, 3),
            ["batch and tokens swapped in 1 tensors"],
        ),
        (
            (L, B, H, D),
            (B, H, L, D),
            lambda x: x.transpose(1, 2, 0, 3),
            ["batch and tokens swapped, heads and tokens swapped in 1 tensors"],
        ),
        (
            (L, B, H, D),
            (B, L, H * D),
            lambda x: x.transpose(1, 0, 2, 3).reshape(B, L, H * D),
            ["batch and tokens swapped, heads merged or split in 1 tensors"],
        ),
        ((1, L, D), (L, D), lambda x: x[0], ["batch axis dropped in 1 tensors"]),
        (
            (B, H, L, D),
            (B, L, H, D),
            lambda x: x.transpose(0, 2, 1, 3),
            ["heads and tokens swapped in 1 tensors"],
        ),
        (
            (B, L, H, D),
            (B, L, H * D),
            lambda x: x.reshape(B, L, H * D),
            ["heads merged or split in 1 tensors"],
        ),
        (
            (B, L, H * D),
            (B, L, H, D),
            lambda x: x.reshape(B, L, H, D),
            ["heads merged or split in 1 tensors"],
        ),
        (
            (B, H, L, D),
            (B, L, H * D),
            lambda x: x.transpose(0, 2, 1, 3).reshape(B, L, H * D),
            ["heads and tokens swapped, heads merged in 1 tensors"],
        ),
        (
            (H, L, D),
            (1, L, H, D),
            lambda x: x.transpose(1, 0, 2)[None],
            ["batch axis added, heads and tokens swapped in 1 tensors"],
        ),
        (
            (B * L, D),
            (B, L, D),
            lambda x: np.stack([x[:L], x[L:]]),
            ["batch and tokens parted in 1 tensors"],
        ),
        (
            (L, H, D),
            (1, L, H * D),
            lambda x: x.reshape(1, L, H * D),
            ["batch axis added, heads merged or split in 1 tensors"],
        ),
        (
            (B * L * D,),
            (B, L, D),
            lambda x: x.reshape(B, L, D),
            ["a line of numbers cut into rows in 1 tensors"],
        ),
        (
            (H * D, L),
            (1, L, H, D),
            lambda x: x.T.reshape(1, L, H, D),
            ["tokens brought before a row's numbers in 1 tensors"],
        ),
        (
            (L, L, H),
            (1, H, L, L),
            lambda x: x.transpose(2, 0, 1)[None],
            ["batch axis added, heads brought before a matrix in 1 tensors"],
        ),
        (
            (H, 2, L, L),
            (1, 2 * H, L, L),
            lambda x: x.reshape(1, 2 * H, L, L),
            ["groups of heads merged, batch axis added in 1 tensors"],
        ),
        (
            (B, H, 2, L, D),
            (B, 2 * H, L, D),
            lambda x: x.reshape(B, 2 * H, L, D),
            ["groups of heads merged in 1 tensors"],
        ),
        (
            (L, H, 2, D),
            (1, 2 * H, L, D),
            lambda x: x.reshape(L, 2 * H, D).transpose(1, 0, 2)[None],
            ["groups of heads merged, batch axis added, heads and tokens swapped in 1 tensors"],
        ),
        (
            (B, L, 1, H, D),
            (B, H, L, D),
            lambda x: x.reshape(B, L, H, D).transpose(0, 2, 1, 3),
            ["groups of heads merged, heads and tokens swapped in 1 tensors"],
        ),
    ],
)
def test_a_move_gives_every_number_its_place(shape, wanted, truth, plan):
    found, numbers, said = moved(shape, wanted)
    np.testing.assert_array_equal(found, truth(numbers))
    assert said == plan
    # In parts it is the same, and read from the file where numbers keep their order.
    side = dump(logits=numbers)
    aligned = align(replace(side, parted=lambda name: replace(held(numbers), in_file=True)))
    parts = aligned.parts("logits", wanted)
    np.testing.assert_array_equal(parts.whole(), truth(numbers))
    assert parts.in_file == (np.ravel(truth(numbers)).tolist() == np.ravel(numbers).tolist())
    assert aligned.plan == plan


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((1, 1, D), (1, L, D)),
        ((1,), (1, L, D)),
        ((), (1, L, D)),
        ((1, L, 1), (1, L, D)),
        ((1, L + 1, D), (1, L, D)),
        ((1, D, L), (1, L, D)),
        ((1, L * D), (1, L, D)),
        ((2, L, D), (L, D)),
        ((B * L + 1, D), (B, L, D)),
        ((B * L * D - 1,), (B, L, D)),
        ((D, B * L), (B, L, D)),
        ((0,), (1, L, D)),
        ((1,) * 64, (1, L, D)),  # as many axes as NumPy has
        ((H, 2, L, D), (1, H, L, D)),
        ((L, L, H + 1), (1, H, L, L)),
    ],
)
def test_nothing_is_broadcast_cut_or_turned(shape, wanted):
    assert move_between(shape, wanted) is None
    found, numbers, said = moved(shape, wanted)
    np.testing.assert_array_equal(found, numbers)
    assert said == []


def test_a_last_parts_own_name_wins_in_either_order():
    part, module = "model.layers.0.mlp.down_proj", "model.layers.0.mlp"
    for order in ((part, module), (module, part)):
        aligned = align(named({name: np.zeros(1) for name in order}))
        assert aligned.names == {part: part}


def test_a_wrapper_changes_nothing_in_that():
    names = [f"module.model.layers.0.{last}" for last in ("mlp", "mlp.down_proj")]
    aligned = align(named({name: np.zeros(1) for name in names}))
    assert aligned.names == {"model.layers.0.mlp.down_proj": names[1]}
    assert aligned.plan == ["1 of 2 names mapped to taps"]


def test_a_name_that_is_taken_for_no_tap_is_not_counted():
    names = ("layers.0.thing", "layers.0.self_attn.q_proj")
    assert align(named({name: np.zeros(1) for name in names})).plan == [
        "1 of 2 names mapped to taps"
    ]


@pytest.mark.parametrize("tell", ["gate", "experts"])
def test_the_mlp_of_a_layer_with_experts_is_what_they_say(tell):
    """By hand: its router, or the experts themselves, tell; a dense layer beside it stays one."""
    names = [f"model.layers.{layer}.mlp" for layer in (0, 1)] + [f"model.layers.1.mlp.{tell}"]
    aligned = align(named({name: np.zeros(1) for name in names}))
    assert aligned.names["model.layers.0.mlp.down_proj"] == "model.layers.0.mlp"
    wanted = "model.layers.1.mlp.experts"
    assert aligned.names[wanted] == (wanted if tell == "experts" else "model.layers.1.mlp")
    assert "model.layers.1.mlp.down_proj" not in aligned.names


@pytest.mark.parametrize(
    "names",
    [("embd", "inp_embd"), ("module.model.norm", "model.norm"), ("step.0/logits", "logits")],
)
def test_two_names_for_one_tap_are_refused(names):
    with pytest.raises(InputError, match=r"two names mean one tap: .* and .*"):
        align(named({name: np.zeros(1) for name in names}))


def test_one_token_may_be_written_without_axes():
    """By hand: the logits of one token; of several, or of heads, nothing says which they are."""
    assert move_between((30,), (1, 1, 30)) == "batch and token axes added"
    read = align(named({"logits": np.arange(30.0)})).read("logits", (1, 1, 30))
    assert read.shape == (1, 1, 30) and (read.ravel() == np.arange(30.0)).all()
    assert move_between((30,), (1, 2, 30)) is None and move_between((30,), (1, 1, 1, 30)) is None
