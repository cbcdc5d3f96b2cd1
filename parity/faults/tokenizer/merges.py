"""What goes wrong with byte-pair encoding itself: which pair is merged first."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.parity.faults.tokenizer.files import Content, file

Ranks = dict[tuple[str, str], int]
Merge = Callable[[list[str], Ranks, Any], list[str]]
LONGEST = 64  # letters; hardly a token is longer


def by_rank(letters: list[str], ranks: Ranks, known: Any) -> list[str]:
    """Merge the pair that was learnt first, wherever it stands. This is the right way."""
    while pairs := [*pairwise(letters)]:
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        letters = merged_at(letters, pairs.index(best))
    return letters


def left_first(letters: list[str], ranks: Ranks, known: Any) -> list[str]:
    """Merge the first pair that can be merged."""
    while True:
        place = next((at for at, pair in enumerate(pairwise(letters)) if pair in ranks), None)
        if place is None:
            return letters
        letters = merged_at(letters, place)


def longest_first(letters: list[str], ranks: Ranks, known: Any) -> list[str]:
    """Take the longest token that the rest begins with."""
    found = []
    while letters:
        sizes = range(min(len(letters), LONGEST), 0, -1)
        size = next((n for n in sizes if known("".join(letters[:n])) is not None), 1)
        found.append("".join(letters[:size]))
        letters = letters[size:]
    return found


def merged_at(letters: list[str], place: int) -> list[str]:
    return [*letters[:place], letters[place] + letters[place + 1], *letters[place + 2 :]]


def encoding(merge: Merge) -> Edit:
    """Encode with another way of merging."""

    def change(made: Any, prompt: Any) -> list[int] | None:
        backend, found = made
        ids = encoded(backend, found.text, merge)
        if ids is None or not found.specials:
            return ids
        front = backend.encode("", add_special_tokens=True).ids
        return [*front, *ids]

    return Edit("encode", change)


def encoded(backend: Any, text: str, merge: Merge) -> list[int] | None:
    """Return the ids of a text; None if the tokenizer is no byte-pair encoding."""
    if type(backend.model).__name__ != "BPE":
        return None
    ranks = ranks_of(backend)
    added = {one.content: number for number, one in backend.get_added_tokens_decoder().items()}
    ids: list[int] = []
    for stretch in stretches(text, [*backend.get_added_tokens_decoder().values()]):
        known = added.get(stretch, added.get(stretch.strip()))
        if known is not None:
            ids.append(known)
            continue
        for piece in pieces(backend, stretch):
            for token in merge([*piece], ranks, backend.token_to_id):
                found = numbers(backend, token)
                if found is None:
                    return None
                ids += found
    return ids


def numbers(backend: Any, token: str) -> list[int] | None:
    """Return a token's id, or those of its bytes; None if it has neither."""
    number = backend.token_to_id(token)
    if number is not None:
        return [number]
    if not backend.model.byte_fallback:
        return None
    found = [backend.token_to_id(f"<0x{byte:02X}>") for byte in token.encode()]
    return None if None in found else found


def stretches(text: str, added: list[Any]) -> list[str]:
    """Return a text in parts: added tokens, the longest first, and what lies between them."""
    if not added:
        return [text]
    longest = sorted(added, key=lambda one: len(one.content), reverse=True)
    pattern = "|".join(
        r"\s*" * one.lstrip + re.escape(one.content) + r"\s*" * one.rstrip for one in longest
    )
    return [part for part in re.split(f"({pattern})", text) if part]


def pieces(backend: Any, text: str) -> list[str]:
    """Return what is merged by itself: the text, normalised and split."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return [text]
    return [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def ranks_of(backend: Any) -> Ranks:
    import json

    merges = json.loads(backend.to_str())["model"]["merges"]
    pairs = [one.split(" ") if isinstance(one, str) else one for one in merges]
    return {(left, right): rank for rank, (left, right) in enumerate(pairs)}


def last_rank_first(content: Content) -> Content | None:
    model = content["model"]
    if not model.get("merges"):
        return None
    return {**content, "model": {**model, "merges": model["merges"][::-1]}}


def other_whole_words(content: Content) -> Content | None:
    """Look whole words up before any pair is merged, or do not."""
    model = content["model"]
    if "merges" not in model:
        return None
    return {**content, "model": {**model, "ignore_merges": not model.get("ignore_merges")}}


MISTAKES = (
    Mistake(
        id="bpe-merge-rank",
        wrong="another pair is merged first",
        right="of all pairs the one of the lowest rank is merged first",
        symptom="other ids for the same letters, here and there",
        where="tokens",
        fix="merge the pair of the lowest rank in the whole word, and begin again",
        evidence=("kekzl/imp@06a9c16 [commit title only]",),
        variants={
            "the leftmost": encoding(left_first),
            "the longest token from the left": encoding(longest_first),
            "the highest rank": file(last_rank_first),
            "whole words looked up first, or not": file(other_whole_words),
        },
    ),
)
