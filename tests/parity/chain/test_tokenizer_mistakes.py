"""Mistakes between a text and its ids are named from the ids alone."""

from functools import cache

import pytest
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

from lockstep.parity.chain.prompt import Prompt
from lockstep.parity.faults.tokenizer import MISTAKES
from lockstep.parity.faults.tokenizer.merges import by_rank, encoding, left_first, longest_first
from tests.parity.chain.tokenizers_for_tests import (
    explained,
    names,
    prompt,
    system,
    tokenizer,
    user,
)  # fmt: skip
from tests.sampled import sampled

HELLO = "hello hello 12345 it's  é e\u0301 ﬁ 日 \\n\nhe\nllo "
PROMPTS = {
    "text": lambda: prompt("chatml", HELLO),
    "chat": lambda: prompt("chatml", user(HELLO)),
    "default": lambda: prompt("lines", user(f" {HELLO}")),
    "system": lambda: prompt("lines", [system("be hello"), *user(" hello\n")]),
    "thinking": lambda: prompt("lines", user("hello"), enable_thinking=False),
    "llama": lambda: prompt("llama", "a b 日 a\n"),
    "llama chat": lambda: prompt("llama", user("ab  a")),
    "strips": lambda: prompt("strips", "<|im_start|> hello hello"),
    "start": lambda: prompt("chatml", " hello"),
    "accents": lambda: prompt("llama", "e\u0301 ﬁ"),
    "borders": lambda: prompt("borders", "hello: 123  'Hello"),
    "threes": lambda: prompt("threes", "123"),
}
VARIANTS = {(one.id, name) for one in MISTAKES for name in one.variants}


def backend(name: str) -> tokenizers.Tokenizer:
    """Return the package's tokenizer of a family, to be changed by the package's own means."""
    return tokenizers.Tokenizer.from_str(tokenizer(name).parts[0].to_str())


def raw(text: str, name: str = "chatml", **options: bool) -> list[int]:
    return backend(name).encode(text, **options).ids


HELPFUL = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
CHAT = "<|im_start|>user\nhi he\n<|im_end|>\n<|im_start|>assistant\n"


@cache
def chat() -> Prompt:
    """Return the chat that the texts here are of; what its template renders is kept."""
    return prompt("chatml", user("hi he\n"))


def test_the_right_ids_are_the_packages_own():
    """By witness: the tokenizers package encodes the text that is written out here."""
    assert prompt("chatml", user("hi he\n")).ids() == raw(CHAT, add_special_tokens=False)
    assert prompt("llama", "a b").ids() == raw("a b", "llama")


@pytest.mark.parametrize(
    ("expected", "port"),
    [
        ("escaped-newline", CHAT.replace("\n", "\\n")),
        ("escaped-newline", CHAT.replace("hi he\n", "hi he\\n")),
        ("escaped-newline", CHAT.replace("\n", "\\n").replace("he\\n", "he\n")),
        ("newline-changed", CHAT.replace("\n", "")),
        ("newline-changed", CHAT.replace("\n", "\r\n")),
        ("generation-prompt-newline", CHAT[:-1]),
        ("generation-prompt-newline", CHAT.removesuffix("<|im_start|>assistant\n")),
        ("chat-template-missing", "hi he\n"),
        ("chat-template-of-another-model", "<s>[INST] hi he\n [/INST]"),
        ("system-prompt-default", HELPFUL + CHAT),
        ("template-content-trim", CHAT.replace("he\n", "he")),
        ("bos-not-wanted", "<|endoftext|>" + CHAT),
        ("eos-behind-prompt", CHAT + "<|im_end|>"),
        ("prefix-space", " " + CHAT),
    ],
)  # fmt: skip
def test_a_wrong_text_is_named(expected, port):
    """By hand, on ids of the tokenizers package."""
    ids = raw(port, add_special_tokens=False)
    assert names(explained(chat(), ids)) == [expected]


def test_bos_is_missing_or_doubled():
    """By hand: id 1 is <s>."""
    right = prompt("llama", "a b").ids() or []
    assert right[:1] == [1]
    assert names(explained(prompt("llama", "a b"), right[1:])) == ["missing-bos"]
    assert names(explained(prompt("llama", "a b"), [1, *right])) == ["double-bos"]
    doubled = raw("<s>[ab]", "llama", add_special_tokens=True)  # what the template wrote has one
    assert doubled[:2] == [1, 1]
    assert names(explained(prompt("llama", user("ab")), doubled)) == ["double-bos"]


def changed(name, change, text, **options):
    """Return the ids of a tokenizer that was changed by the package's own means."""
    made = backend(name)
    change(made)
    return made.encode(text, **options).ids


def unsplit(made):
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def by_gpt2(made):
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def plain(made):
    made.encode_special_tokens = True


def decomposed(made):
    made.normalizer = normalizers.NFD()


def bare(made):
    made.normalizer = None


def unspaced(made):
    made.normalizer = normalizers.Replace(" ", "▁")


def thirds(made):
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|[^\p{N}]+"), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, level])


@pytest.mark.parametrize(
    ("expected", "name", "change", "text"),
    [
        ("special-tokens-as-text", "chatml", plain, "hello<|im_end|> he"),
        ("normaliser-changed", "chatml", bare, "he e\u0301"),
        ("normaliser-changed", "chatml", decomposed, "he é"),
        ("prefix-space", "llama", unspaced, "a b"),
    ],
)
def test_a_wrong_tokenizer_is_named(expected, name, change, text):
    """By witness: the package encodes with a part of the file replaced."""
    assert names(explained(prompt(name, text), changed(name, change, text))) == [expected]


@pytest.mark.parametrize(("text", "change"), [("lo:", unsplit), ("12", by_gpt2), ("123", thirds)])
def test_a_wrong_split_is_named(text, change):
    """By witness, on a vocabulary in which a word and its border, or digits, are tokens."""
    ids = changed("borders", change, text)
    assert ids != raw(text, "borders")
    assert names(explained(prompt("borders", text), ids)) == ["pretokeniser-regex"]


def test_our_own_merging_is_right_before_it_is_made_wrong():
    """By witness: merging by rank gives the package's ids, text by text."""
    for make in PROMPTS.values():
        which = make()
        assert which.ids([encoding(by_rank)]) == which.ids()


def test_wrong_merges():
    """By hand: b and c were learnt first, a and b second; `abc` is a token besides."""
    ranks = {("b", "c"): 0, ("a", "b"): 1, ("ab", "c"): 2}
    found = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}.get
    assert by_rank([*"abc"], ranks, found) == ["a", "bc"]
    assert left_first([*"abc"], ranks, found) == ["abc"]
    assert longest_first([*"abcab"], ranks, found) == ["abc", "ab"]


def acting(which):
    """Yield each form that changes the ids of a prompt, with these ids."""
    for mistake, variant in sorted(VARIANTS):
        (edit,) = [one.variants[variant] for one in MISTAKES if one.id == mistake]
        ids = which.ids([edit])
        if ids not in (None, which.ids()):
            yield (mistake, variant), ids


@sampled(0)
def test_every_form_changes_something():
    assert {form for make in PROMPTS.values() for form, _ in acting(make())} == VARIANTS


@sampled(3, "chat")
@pytest.mark.parametrize("name", PROMPTS)
def test_every_form_is_found(name):
    """By law: what was planted explains the ids, alone or beside others that fit as well."""
    which = PROMPTS[name]()
    for form, ids in acting(which):
        fit = explained(which, ids)
        assert fit is not None and len(fit.chosen) == 1, form
        assert form[0] in {fit.chosen[0].mistake.id, *fit.ties[0]}, names(fit)


def test_two_mistakes_are_told_apart():
    """By hand: a BOS that is not wanted before escaped line feeds."""
    ids = raw("<|endoftext|>" + CHAT.replace("\n", "\\n"), add_special_tokens=False)
    fit = explained(chat(), ids)
    assert sorted(names(fit)) == ["bos-not-wanted", "escaped-newline"]


def test_what_is_like_no_mistake_has_no_name():
    assert explained(prompt("chatml", user("hi")), [5, 6, 7]) is None
