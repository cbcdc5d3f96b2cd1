"""An embedding of other ids, or of another checkpoint. By hand: rows of the table itself."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, model_of, port, prompt

MODELS = {
    "models/untied_float32": "model.embed_tokens",
    "gemma4/sparse": "model.embed_tokens",
    "gpt2/original": "transformer.wte",
}


def said_of(name, change):
    """Return what is said of the embedding of a port whose rows are changed."""
    taps, tap = port(name), MODELS[name]
    taps[tap] = change(taps[tap].copy())
    found = explained(name, {tap: taps[tap]}, ())
    return {one.tap: one.shape for one in found.unexplained}.get(tap)


def swapped(rows):
    """Return rows of which tokens 3 and 4 changed places."""
    rows[:, [3, 4]] = rows[:, [4, 3]]
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_the_ids_are_named_that_the_port_was_fed(name):
    ids = prompt(model_of(name))[0].tolist()
    assert ids[3] != ids[4]
    expected = f"token 3 has that of {ids[4]}, but should have {ids[3]}'s; 1 more differ"
    assert said_of(name, swapped) == f"other rows of its table: {expected}"


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_another_checkpoint_are_told(name):
    draw = np.random.default_rng(5).standard_normal
    said = said_of(name, lambda rows: draw(rows.shape).astype(rows.dtype))
    assert said == "like no row of its table: is it of this checkpoint?"


def test_ids_are_named_though_a_row_beside_is_none(name="models/untied_float32"):
    """By hand: token 0 is noise, tokens 3 and 4 changed places."""

    def change(rows):
        rows = swapped(rows)
        rows[:, 0] = np.random.default_rng(5).standard_normal(rows.shape[-1])
        return rows

    ids = prompt(model_of(name))[0].tolist()
    expected = f"token 3 has that of {ids[4]}, but should have {ids[3]}'s; 2 more differ"
    assert said_of(name, change) == f"other rows of its table: {expected}"


def test_right_rows_at_another_scale_are_no_other_rows():
    said = said_of("models/untied_float32", lambda rows: 3 * rows)
    assert said == "gain: 3 times the right value"


def test_one_row_of_noughts_says_nothing_of_the_checkpoint():
    """By hand: as a library leaves the row of its padding."""

    def without_one(rows):
        rows[:, 7] = 0
        return rows

    said = said_of("models/untied_float32", without_one)
    assert said.startswith("gain: each token by a factor of its own, from ")
