"""A short sample of the soak, and that it would notice. By law, and by hand."""

import json

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.bench.soak import Soak, Soaked, main, report
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.slots import Slots
from tests.parity.conftest import DEMO, MODELS
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each


@long
@pytest.mark.parametrize("side", ["reference", "cpu", "mlx"])
def test_a_second_of_it_is_right(side):
    path = MODELS / "tied_bfloat16"
    model = reference.load(path) if side == "reference" else fast.load(path, backend=side)
    found = Soak(model, slots=8, seed=1).run(1.0)
    assert found.right and not found.wrong and not found.lost
    assert found.equal + found.within_rounding + found.refused == found.answers >= 8
    assert 0 < found.memory_start <= found.memory_peak
    assert found.memory_start == found.tenths[0] and len(found.tenths) <= 10
    assert " ".join(f"{one:.0f}" for one in found.tenths) in report(found)


@long
def test_answers_that_see_what_others_left_are_wrong(monkeypatch):
    blind = Slots.extend
    monkeypatch.setattr(Slots, "extend", lambda self, new: np.maximum(blind(self, new), 0))
    found = Soak(fast.load(DEMO, backend="cpu"), slots=8, seed=1).run(0.5)
    assert found.wrong and not found.right
    assert f"{len(found.wrong)}, the first is prompt {found.wrong[0]}" in report(found)


def test_answers_that_are_lost_are_counted(monkeypatch):
    soak = Soak(fast.load(MODELS / "tied_bfloat16", backend="cpu"), slots=4, seed=1)
    together = soak.together

    def losing(*arguments, **options):
        return (one for one in together(*arguments, **options) if one.text != 2)

    soak.together = losing
    found = soak.run(0.3)
    assert found.lost == 1 and not found.right and not found.wrong


def test_answers_that_are_mixed_up_are_wrong():
    soak = Soak(fast.load(MODELS / "tied_bfloat16", backend="cpu"), slots=4, seed=1)
    together = soak.together

    def mixed(*arguments, **options):
        for one in together(*arguments, **options):
            yield one._replace(token=(one.token + 1) % 100) if one.text == 1 else one

    soak.together = mixed
    found = soak.run(0.3)
    assert found.wrong == [1] and not found.right


@long
@pytest.mark.parametrize("change", [{"error": None, "token": 3}, {"error": InputError("x", "y")}])
def test_a_bad_prompt_that_is_answered_is_wrong(change):
    """By hand: the 16th is bad; it has no answer, and its error names its id and no other."""
    soak = Soak(fast.load(MODELS / "tied_bfloat16", backend="cpu"), slots=16, seed=1)
    together, texts = soak.together, []

    def answered(*arguments, **options):
        for one in together(*arguments, **options):
            texts.append(one.text)
            yield one._replace(**change) if one.text == 15 else one

    assert soak.run(0.01).refused == 1
    soak.together = answered
    found = soak.run(0.01)
    assert found.wrong == [15] and not found.refused and not found.right and 15 in texts


class Level:
    """A model that finds two tokens as good as each other, but for what is said."""

    runs_on = "reference"

    def __init__(self, gap: float):
        self.gap = gap
        self.config = type("Config", (), {"vocab_size": 8})

    def forward(self, tokens, *, last_only):
        row = np.full(8, -10.0)
        row[:2] = 0.0, self.gap
        return row[None, None]


@pytest.mark.parametrize(("gap", "decides"), [(0.0, True), (1e-5, True), (0.1, False)])
def test_rounding_decides_between_equals_alone(gap, decides):
    """By hand: the spread of these logits is 4.3, so a gap of 0.1 is none of rounding."""
    soak = Soak(Level(gap), slots=1, seed=0)
    assert soak.rounding_decides(0, [5, 1], [5, 0]) == decides
    assert not soak.rounding_decides(0, [5, 3], [5, 0])
    assert not soak.rounding_decides(0, [5], [5, 0])


def test_rounding_decides_a_draw_at_a_border_alone(monkeypatch):
    """By hand: two tokens of a half each, a number at their border or not, and whose it is.

    Of the others none has a share; beyond 0 and 1 there is no token.
    """
    soak = Soak(Level(0.0), slots=1, seed=0)
    for uniform, made, decides in (
        (0.5, 1, True), (0.50001, 1, True), (0.4, 1, False), (0.5, 2, False), (0.5, 5, False),
        (0.00001, 1, False), (0.00001, 7, False), (0.99999, 1, False),
    ):  # fmt: skip
        monkeypatch.setattr("lockstep.parity.bench.soak.seeded", lambda seed, u=uniform: iter([u]))
        assert soak.rounding_decides(1, [made], [0]) == decides, (uniform, made)
    monkeypatch.setattr("lockstep.parity.bench.soak.seeded", lambda seed: iter([0.5]))
    assert soak.rounding_decides(1, [0], [1]) and not soak.rounding_decides(1, [2], [1])


def test_memory_that_grows_is_not_right():
    """By hand: beyond a tenth, in a run long enough to tell."""
    flat = {"answers": 9, "equal": 9, "memory_start": 100.0}
    assert Soaked(**flat, memory_end=109, seconds=99).right
    assert not Soaked(**flat, memory_end=111, seconds=99).right
    short = Soaked(**flat, memory_end=111, seconds=9)
    assert short.right and short.flat is None
    assert report(short).endswith("; too short a run to call it flat")
    assert report(Soaked(**flat, memory_end=109, seconds=99)).endswith(", flat")
    assert report(Soaked(**flat, memory_end=111, seconds=99)).endswith(", it grew")
    assert not Soaked(memory_start=100, memory_end=100, seconds=99).right


def test_memory_is_noted_once_a_tenth():
    """By hand: of a run of 20 seconds, whose answers come when they come; or of no time at all."""
    found = Soaked()
    for second, memory in ((1, 90), (3, 100), (3, 101), (7, 105), (19, 107), (25, 108), (99, 109)):
        found.seconds, found.memory_end = second, memory
        found.note_tenth(2.0)
    assert found.tenths == [100, 105, 105, *[107] * 6, 108]
    assert found.memory_start == 100
    short = Soaked(memory_end=90)
    short.note_tenth(0.0)
    assert short.tenths == [90] * 10


def test_the_command(capsys, tmp_path):
    arguments = [str(MODELS / "tied_bfloat16"), "--backend", "cpu", "--minutes", "0.005",
                 "--slots", "4", "--json", str(tmp_path / "soak.json")]  # fmt: skip
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("RIGHT  ")
    found = json.loads((tmp_path / "soak.json").read_text())
    assert (
        found["right"] and found["flat"] is None and found["wrong"] == [] and found["answers"] >= 4
    )
