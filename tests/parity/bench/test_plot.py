"""The picture of a benchmark: figures by hand, and XML that a reader of XML takes."""

import re
from xml.etree import ElementTree

import pytest

from lockstep.parity.bench.plot import BAR, LABEL, drawn

LIMITS = {"prefill_tokens_per_second": 400.0, "decode_tokens_per_second": 50.0}


def engine(name, prefill, limits):
    rate = {"median": prefill, "low": prefill / 2, "high": prefill * 2}
    return {
        "name": name, "prefill_tokens_per_second": rate, "first_token_s": 0.25,
        "decode_tokens_per_second": rate, "peak_bytes": 5e8, "limits": limits,
    }  # fmt: skip


@pytest.fixture
def found():
    about = [{"name": one, "dtype": "float32", "weights": "as stored"} for one in ("cpu", "<&>")]
    engines = [engine("cpu", 100.0, LIMITS), engine("<&>", 10.0, None)]
    runs = [{"prompt_tokens": length, "engines": engines} for length in (8, 16)]
    return {"model": "/a/b/model & co", "rounds": 3, "engines": about, "runs": runs}


def parts(found, name):
    tree = ElementTree.fromstring(drawn(found))
    return [one for one in tree.iter() if one.tag.endswith(name)]


def test_bars_are_as_long_as_the_figures(found):
    """By hand: 100 of 400, which is the limit; 10 of the same."""
    bars = [one for one in parts(found, "rect") if one.get("x") == str(LABEL)]
    widths = [float(one.get("width", "")) for one in bars]
    assert widths == pytest.approx([BAR / 4, BAR / 40] * 2, abs=0.06)


def test_a_limit_where_there_is_one(found):
    """By hand: of two prompts the first engine, in two phases; and the legend's."""
    limits = [one for one in parts(found, "line") if one.get("class") == "limit"]
    assert len(limits) == 2 * 2 + 1


def test_figures_and_names_are_there_and_names_are_no_markup(found):
    said = [one.text for one in parts(found, "text")]
    for one in ("8 tokens of prompt", "16 tokens of prompt", "100", "10.0", "250 ms", "0.50 GB",
                "<&>", "lockstep bench model & co"):  # fmt: skip
        assert one in said


def test_nothing_comes_from_outside(found):
    assert not re.search(r"href|url\(|@import|<script", drawn(found))
