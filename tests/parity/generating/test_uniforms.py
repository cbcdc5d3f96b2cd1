"""Uniform numbers from a seed, the same everywhere, and from files of any writer."""

import itertools

import numpy as np
import pytest

from lockstep.parity.generating.uniforms import uniforms
from lockstep.reference.checkpoint.errors import InputError


def first(count, *arguments):
    return list(itertools.islice(uniforms(*arguments), count))


def test_a_seed_gives_philox_numbers_for_ever():
    # By witness: numpy.random.Generator(numpy.random.Philox(seed)).random(3).
    assert first(3, None, 0) == np.random.Generator(np.random.Philox(0)).random(3).tolist()
    assert first(2, None, 7) != first(2, None, 8)
    assert first(500, None, 10**17) == first(500, None, 10**17)


def test_the_numbers_of_a_seed_are_pinned():
    assert first(2, None, 0) == [0.014067035665647709, 0.2577672456246177]


@pytest.mark.parametrize("text", ["0 0.5\n0.25", "[0, 0.5, 0.25]", " 0.0\t5e-1\r\n.25 \n"])
def test_files_hold_numbers_in_any_layout(tmp_path, text):
    (tmp_path / "u").write_text(text)
    assert first(3, str(tmp_path / "u"), 0) == [0.0, 0.5, 0.25]


def test_a_file_that_runs_out_says_so(tmp_path):
    (tmp_path / "u").write_text("0.5 0.5")
    numbers = uniforms(str(tmp_path / "u"), 0)
    assert [next(numbers), next(numbers)] == [0.5, 0.5]
    with pytest.raises(InputError, match="holds 2 uniforms, but more tokens were asked for"):
        next(numbers)


@pytest.mark.parametrize(
    ("data", "core"),
    [
        (b"", "file is empty"),
        (b"one two", "not a list of numbers"),
        (b"0.5 1", "uniform 1.0, but should be at least 0 and below 1 (number 1)"),
        (b"-0.1", "uniform -0.1"),
        (b"nan", "'nan' is none"),
        (b"[0.5, NaN]", "'NaN' is none"),
        (b"inf", "not a list"),
        (b"1e999", "uniform inf"),
        (b"9e300", "uniform 9e+300"),
        (b"[0.5", "not a list of numbers"),
        (b"[[0.5]]", "not a list of numbers"),
        (b"[null]", "not a list of numbers"),
        (b"[true]", "not a list of numbers"),
        (b"0_1", "not a list of numbers"),
        (b"[" * 99999, "not a list of numbers"),
        ("٠.٥".encode(), "not a list of numbers"),
        (b"\x00\x1b[31m", "not a list of numbers"),
    ],
)
def test_anything_else_is_refused_in_a_line(tmp_path, data, core):
    (tmp_path / "u").write_bytes(data)
    with pytest.raises(InputError) as caught:
        uniforms(str(tmp_path / "u"), 0)
    assert core in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            uniforms(str(path), 0)
