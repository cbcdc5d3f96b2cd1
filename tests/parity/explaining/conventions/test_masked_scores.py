"""Scores with the mask on them are a convention. By law."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, graph_of, ids, port

NAME = "models/untied_float32"
SAID = "taps of scores have the mask on them"
ELSE = "taps of scores have other numbers where the mask hides them"


def masked(bugs, low, *, hidden=0, dtype="float32"):
    """Return taps whose scores are `low` for all keys behind a query, and `hidden` more of them."""
    taps = port(NAME, bugs, level="taps", dtype=dtype)
    for tap in (tap for tap in taps if tap.endswith(".scores")):
        length = taps[tap].shape[-1]
        behind = np.arange(length) > np.arange(length)[:, None] + hidden
        taps[tap] = np.where(behind, low(taps[tap]), taps[tap]).astype(taps[tap].dtype)
    return taps


LOWS = {
    "-inf": lambda scores: np.full_like(scores, -np.inf),
    "the lowest number": lambda scores: np.full_like(scores, np.finfo(np.float32).min),
    "lowered": lambda scores: scores - np.float32(1e9),
    "lowered by 10000": lambda scores: scores - np.float32(1e4),
}
OTHERS = {
    "0": np.zeros_like,
    "what was in the buffer": lambda scores: np.roll(scores, 1, axis=-1) * 3,
    "no number": lambda scores: np.full_like(scores, np.nan),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("hidden", "said"),
    [*((low, SAID) for low in LOWS.values()), *((other, ELSE) for other in OTHERS.values())],
    ids=[*LOWS, *OTHERS],
)
def test_a_right_port_is_clean_whatever_the_mask_hides(hidden, said, dtype):
    found = explained(NAME, masked([], hidden, dtype=dtype))
    assert (found.verdict, found.faults) == ("clean", [])
    layers = sum(tap.endswith(".scores") for tap in graph_of(NAME, 20).taps)
    assert sum(line.startswith(f"{layers} {said}") for line in found.conventions) == 1


@pytest.mark.parametrize(("bugs", "hidden"), [(["mask-causal-missing"], 0), ([], -1)])
def test_noughts_that_the_softmax_takes_or_should_not_have_are_judged(bugs, hidden):
    """The port masks nothing; or each query's own key is nought too."""
    found = explained(NAME, masked(bugs, OTHERS["0"], hidden=hidden))
    assert found.verdict != "clean" and not any(ELSE in line for line in found.conventions)


def test_no_numbers_that_came_from_before_are_no_other_numbers():
    """By hand: what the first token reads of itself is NaN, so all that is made of it is too."""
    bug = "mask-causal-off-by-one[not itself, and no number where nothing is seen]"
    found = explained(NAME, port(NAME, [bug], level="taps"))
    assert "mask-causal-off-by-one" in ids(found)
    assert not any(ELSE in line for line in found.conventions)


def test_bugs_beside_them_are_named_and_a_factor_of_the_scores_is():
    found = explained(NAME, masked(["head-merge-without-transpose"], LOWS["-inf"]))
    assert ids(found) == {"head-merge-without-transpose"} and not found.unexplained
    found = explained(NAME, masked(["attn-scale-twice"], LOWS["-inf"]))
    assert ids(found) == {"attn-scale-twice"} and not found.unexplained


@pytest.mark.parametrize("low", ["-inf", "lowered"])
def test_scores_that_are_low_elsewhere_are_judged(low):
    """The port sees one key of the future, which is not low."""
    bug = "mask-causal-off-by-one[one key of the future]"
    found = explained(NAME, masked([bug], LOWS[low], hidden=1))
    assert found.verdict == "faults" and found.unexplained
    assert not any(said in line for said in (SAID, ELSE) for line in found.conventions)
