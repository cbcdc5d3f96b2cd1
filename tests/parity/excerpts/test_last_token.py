"""Dumps of the last token alone, which do not say so: by hand, on shapes."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.excerpts.beginning import as_explained
from lockstep.parity.excerpts.last_token import with_last_told

TOKENS = [5, 6, 7]
LAST = {"tok_emb": (1, 8), "blocks.0.attn.wq": (8,), "blocks.0": (1, 8), "logits": (1, 30)}


def dump(shapes, **about) -> Dump:
    return Dump(Path("dump"), shapes, lambda name: np.zeros(shapes[name]), about)


def test_one_row_of_every_part_is_the_last_tokens():
    told, lines = with_last_told(dump(LAST), TOKENS)
    assert json.loads(told.about["positions"]) == [2] and len(lines) == 1
    said = dump(LAST, tokens="[5, 6, 7]")
    _, _, lines, some = as_explained(said, None, None)
    assert some is not None and some.rows == ((2,),) and "last alone" in lines[0]


@pytest.mark.parametrize(
    "more",
    [
        {"blocks.0.mlp": (3, 8)},  # a row for each token
        {"blocks.0.attn.k": (2, 3, 4)},
        {"step.1/blocks.0": (1, 8)},
        {f"blocks.{n}": (2, 8) for n in range(5)},  # neither one nor all
    ],
)
def test_other_dumps_are_left_as_they_are(more):
    assert with_last_told(dump(LAST | more), TOKENS)[1] == []


def test_probabilities_are_over_all_keys():
    assert with_last_told(dump(LAST | {"blocks.0.attn.att": (2, 3, 3)}), TOKENS)[1]


def test_what_says_itself_or_is_of_one_token_is_left():
    """Logits of the last token alone are read beside whole layers, as they always were."""
    assert with_last_told(dump({"logits": (1, 30), "model.norm": (1, 8)}), TOKENS)[1] == []
    assert with_last_told(dump(LAST), TOKENS[:1])[1] == []
    assert with_last_told(dump(LAST, batch="[[1, 2], [3, 4]]"), None)[1] == []


def test_buffers_that_are_written_in_a_line_are_no_single_rows():
    """By hand: a stream of 8 numbers a token, all tokens one behind the other."""
    line = {"blocks.0.out": (8 * len(TOKENS),)}
    assert with_last_told(dump(LAST | line), TOKENS, 8)[1] == []
    assert with_last_told(dump(LAST | line), TOKENS, 7)[1]
