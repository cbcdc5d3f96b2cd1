"""A BPE tokenizer of its parts: handed over, vocabulary and merges take the package half as long
as they take it to read their JSON.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

LARGE = {"vocab", "merges"}
OPTIONS = {
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
    "byte_fallback", "ignore_merges",
}  # fmt: skip
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
ADDED = {"id", "content", *FLAGS}


def is_plain(content: dict[str, Any]) -> bool:
    """Say whether a tokenizer.json has all that `assembled` takes, and of a model nothing else."""
    model, added = content["model"], content.get("added_tokens") or []
    known = model.get("type") == "BPE" and model.keys() <= {"type", *LARGE, *OPTIONS}
    alike = len(set(map(type, model.get("merges") or []))) <= 1  # of two kinds it is no tokenizer
    return known and alike and all(token.keys() == ADDED for token in added)


def assembled(content: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of a plain tokenizer.json, just as the package reads it.

    Raises: what the package raises. Its reading of all but the large parts is its own.
    """
    model, added = content["model"], content.get("added_tokens") or []
    small = content | {"model": model | {"vocab": {}, "merges": []}, "added_tokens": []}
    tokenizer = Tokenizer.from_str(json.dumps(small))
    options = {key: model[key] for key in OPTIONS & model.keys() if model[key] is not None}
    tokenizer.model = BPE(vocab=model["vocab"], merges=pairs(model["merges"]), **options)
    tokenizer.add_tokens(
        [AddedToken(one["content"], **{flag: one[flag] for flag in FLAGS}) for one in added]
    )
    return tokenizer


def pairs(merges: list[Any]) -> list[Any]:
    """Return the parts of each merge, all of one kind; the package refuses what is not two."""
    texts = bool(merges) and isinstance(merges[0], str)
    return list(map(tuple, [merge.split(" ") for merge in merges] if texts else merges))
