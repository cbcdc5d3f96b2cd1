"""A diagnosis as a person reads it. By hand."""

from lockstep.parity.explaining.said.diagnosis import Diagnosis, Unexplained
from lockstep.parity.explaining.said.report import report


def unknown(count: int) -> str:
    """Return the report on so many wrong taps without a name."""
    wrong = [Unexplained(f"model.layers.{at}", 0.5, 1e-7, "") for at in range(count)]
    return report(Diagnosis(dump="port", model="model", unexplained=wrong))


def test_of_many_taps_without_a_name_the_first_are_listed():
    text = unknown(15)
    assert "15 wrong taps unexplained" in text
    assert "model.layers.11  " in text and "model.layers.12" not in text
    assert text.endswith("\nand 3 more, which --json lists")


def test_of_few_all_are_listed():
    assert "1 wrong tap unexplained" in unknown(1)
    text = unknown(12)
    assert "model.layers.11  " in text and "more" not in text
