"""The three-way rule for config keys: used, ignored for a reason, or refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.errors import InputError, show, show_names

TRAINING = "only training uses it"
REPORTING = "only says what a Python call returns"
ORIGIN = "says where the file came from; nothing is opened or downloaded"
CODE = "names Python code, which is never run"
KERNEL = "says which kernel transformers would run"

# Keys that change no number of a forward pass. Everything not listed here and not read is refused.
IGNORED: Mapping[str, str] = {
    "attention_dropout": TRAINING,
    "initializer_range": TRAINING,
    "use_cache": "a cache changes the speed, not the result",
    "bos_token_id": "the tokenizer decides what stands before a prompt",
    "pad_token_id": "padding is described by the lengths of the rows",
    "transformers_version": ORIGIN,
    "unsloth_version": ORIGIN,
    "unsloth_fixed": ORIGIN,
    "_name_or_path": ORIGIN,
    "name_or_path": ORIGIN,
    "_commit_hash": ORIGIN,
    "auto_map": CODE,
    "trust_remote_code": CODE,
    "output_attentions": REPORTING,
    "output_hidden_states": REPORTING,
    "return_dict": REPORTING,
    "problem_type": "only a classifier's loss uses it",
    "id2label": "names the classes of a classifier",
    "label2id": "names the classes of a classifier",
    "_attn_implementation": KERNEL,
    "_attn_implementation_autoset": KERNEL,
    "attn_implementation": KERNEL,
    "chunk_size_feed_forward": "splits the work, not the result",
}


def check_leftovers(
    fields: Fields,
    ignore: Collection[str],
    warnings: list[str],
    ignored: Collection[str] = (),
) -> None:
    """Refuse every key of an object that was neither used, nor ignored, nor waived by the user.

    Keys that are null or false switch something off that this architecture does not have: they
    are only mentioned in `warnings`.
    """
    rest = [key for key in fields.raw if key not in fields.used and key not in ignored]
    unknown = [key for key in rest if fields.prefix + key not in ignore]
    off = [key for key in unknown if fields.raw[key] is None or fields.raw[key] is False]
    if off:
        names = show_names([fields.prefix + key for key in off])
        warnings.append(f"unknown config keys ignored, they are null or false: {names}")
    refused = [fields.prefix + key for key in unknown if key not in off]
    if refused:
        raise InputError(fields.path, _unknown(refused), f"found {show(_value(fields, refused))}")
    if waived := [fields.prefix + key for key in rest if key not in unknown]:
        warnings.append(f"config keys ignored on request: {show_names(waived)}")


def check_ignore(ignore: Collection[str], used: Collection[str], fields: Fields) -> None:
    """Refuse to ignore a key that the architecture is made of."""
    wrong = sorted(set(ignore) & set(used) & set(fields.raw))
    if wrong:
        raise InputError(fields.path, f"field {show(wrong[0])} is used, it cannot be ignored")


def _unknown(names: list[str]) -> str:
    way = f"pass --ignore-config {show(names[0], 60)[1:-1]} if it changes nothing"
    if len(names) == 1:
        return f"unknown config key {show(names[0], 60)}; {way}"
    return f"unknown config keys {show_names(names, 2)}; {way}"


def _value(fields: Fields, refused: list[str]) -> object:
    return fields.raw[refused[0].removeprefix(fields.prefix)]


def names_of(ignored: Collection[str]) -> frozenset[str]:
    """Return the keys that may be ignored. One text is one key, not a collection of letters."""
    return frozenset([ignored] if isinstance(ignored, str) else ignored)
