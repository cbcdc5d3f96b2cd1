"""Exponents of what it costs: of known laws, and of a run that is really made."""

import json

import numpy as np
import pytest

from lockstep.parity.bench import growth


@pytest.mark.parametrize("power", [0, 1, 2, 0.5])
def test_a_power_law_gives_its_exponent(power):
    """By law: a factor before it changes nothing."""
    sizes = [128, 256, 512, 8192]
    assert growth.exponent(sizes, [3e-4 * size**power for size in sizes]) == pytest.approx(power)


def test_the_spread_is_that_of_the_rounds():
    """By hand: a round that is linear, one that is quadratic, and one between."""
    rounds = [[1, 2, 4, 8], [1, 4, 16, 64], [1, 2**1.5, 8, 2**4.5]]
    found = growth.Grown("cpu", "length", "prefill", [1, 2, 4, 8], [*zip(*rounds, strict=True)])
    told = found.to_json()["exponent"]
    assert (told["low"], told["median"], told["high"]) == pytest.approx((1, 1.5, 2))
    assert found.last == pytest.approx(1.5)


def test_constant_and_quadratic_parts_show_at_the_end():
    """By hand: n + n**2 / 1000 is linear first and quadratic last."""
    sizes = [10, 100, 1_000, 10_000, 100_000]
    seconds = [[size + size**2 / 1000] for size in sizes]
    found = growth.Grown("cpu", "length", "prefill", sizes, seconds)
    assert 1 < found.exponents[0] < found.last < 2
    assert found.last == pytest.approx(np.log10(1.01e7 / 1.1e5))


def test_the_reference_is_spared_what_does_not_fit():
    point = growth.Point(length=8192, batch=1, width=1024, layers=1)
    assert not growth.fits("reference", point)
    assert growth.fits("cpu", point)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--longest", "64"], "--along length: reference would be run at 0 of 128, 256, 512, "),
        (["--longest", "128"], "--along length: reference would be run at 1 of 128, 256, 512, "),
        (["--along", "batch", "--length", "4096"], "--along batch: reference would be run at 1 of"),
        (["--along", "depth"], "--along: 'depth' is none of length, batch, width, layers"),
    ],
)
def test_fewer_than_two_sizes_are_refused_before_anything_is_run(options, said, capsys):
    assert growth.main([*options, "--rounds", "1"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(said) and len(told.err.splitlines()) == 1


def test_every_size_of_every_backend_is_run(monkeypatch, tmp_path, capsys):
    sizes = {"length": (2, 4, 9), "batch": (1, 2), "width": (64, 128), "layers": (1, 2)}
    monkeypatch.setattr(growth, "SIZES", sizes)
    small = ["--length", "3", "--width", "64", "--layers", "1", "--vocabulary", "32"]
    growth.main([*small, "--longest", "8", "--rounds", "2", "--json", str(tmp_path / "g.json")])
    found = json.loads((tmp_path / "g.json").read_text())["growth"]
    expected = {(backend, along, phase) for backend in ("reference", "cpu", "mlx")
                for along in sizes for phase in ("prefill", "step")}  # fmt: skip
    assert {(one["backend"], one["along"], one["phase"]) for one in found} == expected
    for one in found:
        assert one["sizes"] == [size for size in sizes[one["along"]] if size <= 128 and size != 9]
        assert [len(rounds) for rounds in one["seconds"]] == [2] * len(one["sizes"])
        assert min(map(min, one["seconds"])) > 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(expected)
