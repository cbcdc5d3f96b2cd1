"""A tokenizer put together of its parts is the one that the package reads. By witness: its own
reading of the JSON, written out again.
"""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from lockstep.reference.tokenizer.assembled import assembled, is_plain
from tests.reference.tokenizer.conftest import CONTENTS

DEMOS = Path(__file__).parents[3] / "parity" / "demo"
TEXTS = ("", "hello hello<think>he<|im_end|>", " aé  <s>a\U0001f600</s>", "\u0065\u0301 x\n\n12")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def contents():
    for family, make in CONTENTS.items():
        yield family, make()
    for name in ("checkpoint", "gemma4"):
        yield name, json.loads((DEMOS / name / "tokenizer.json").read_text(encoding="utf-8"))


CASES = dict(contents())


def same(content):
    """Hold the parts put together against the package's reading, in all it says and does."""
    assert is_plain(content)
    ours, theirs = assembled(content), Tokenizer.from_str(json.dumps(content))
    assert ours.to_str() == theirs.to_str()
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.encode(text).tokens == theirs.encode(text).tokens


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_tokenizer_that_the_package_reads(case):
    same(CASES[case])


@pytest.mark.parametrize("form", [list, " ".join])
def test_merges_may_be_pairs_or_texts(form):
    content = CONTENTS["byte_level"]()
    content["model"]["merges"] = [form(pair) for pair in content["model"]["merges"]]
    same(content)


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": None, "unk_token": None, "end_of_word_suffix": None},
        {"dropout": 0.0, "continuing_subword_prefix": "", "end_of_word_suffix": ""},
        {"fuse_unk": True, "unk_token": "a"},
        {"ignore_merges": True},
        {"end_of_word_suffix": "e"},
    ],
)
def test_options_stay(options):
    content = CONTENTS["byte_level"]()
    content["model"] |= options
    same(content)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("text", ["he", "<new>", " x"])
def test_added_tokens_stay_as_they_are(text, flag):
    """Inside of the vocabulary, and behind it."""
    content = CONTENTS["byte_level"]()
    known = content["model"]["vocab"].get(text, len(content["model"]["vocab"]) + 4)
    token = dict.fromkeys(FLAGS, False) | {"id": known, "content": text, flag: True}
    content["added_tokens"].append(token)
    same(content)


def test_what_is_cut_and_padded_stays():
    content = CONTENTS["byte_level"]()
    content["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    content["padding"] = {
        "strategy": {"Fixed": 6}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 3,
        "pad_type_id": 0, "pad_token": "h",
    }  # fmt: skip
    same(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"].pop("type"),
        lambda content: content["model"].update(type="WordLevel"),
        lambda content: content["model"].update(new=1),
        lambda content: content["model"].update(merges=["h e", ["l", "l"]]),
        lambda content: content["added_tokens"][0].pop("special"),
        lambda content: content["added_tokens"][0].update(new=1),
    ],
)
def test_what_it_does_not_know_is_left_to_the_package(change):
    content = CONTENTS["byte_level"]()
    change(content)
    assert not is_plain(content)
