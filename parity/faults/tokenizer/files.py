"""What goes wrong with what a tokenizer.json says: how a text is normalised and split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lockstep.parity.faults.mistake import Edit, Mistake

Content = dict[str, Any]
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
ENDINGS = r"'(?:[sdmt]|ll|ve|re)"
GPT2 = rf"{ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
NEWER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "GPT-2's": GPT2,
    "Llama 3's, digits in threes": NEWER.format(digits=r"\p{N}{1,3}"),
    "Qwen's, digits alone": NEWER.format(digits=r"\p{N}"),
}


def file(change: Callable[[Content], Content | None]) -> Edit:
    return Edit("file", lambda content, prompt: change(content))


def parts(component: Any) -> Iterator[Content]:
    """Yield the simple components of a normaliser or pre-tokeniser, in order."""
    if isinstance(component, dict) and component.get("type") == "Sequence":
        for one in component.get("normalizers") or component.get("pretokenizers") or []:
            yield from parts(one)
    elif component is not None:
        yield component


def sequence(kind: str, components: list[Content]) -> Content | None:
    return {"type": "Sequence", kind: components} if components else None


def split_by(pattern: str | None) -> Edit:
    """Split by another pattern, or by none."""

    def change(content: Content) -> Content | None:
        found = [*parts(content["pre_tokenizer"])]
        splits = any(one["type"] == "Split" or one.get("use_regex") for one in found)
        if not splits:
            return None
        rest = [
            one | ({"use_regex": False} if "use_regex" in one else {})
            for one in found
            if one["type"] not in ("Split", "Digits", "Punctuation")
        ]
        if pattern is not None:
            made = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
            rest = [{**made, "invert": False}, *rest]
        return {**content, "pre_tokenizer": sequence("pretokenizers", rest)}

    return file(change)


def normalised(change: Callable[[list[Content]], list[Content]]) -> Edit:
    """Normalise otherwise."""

    def changed(content: Content) -> Content | None:
        found = [*parts(content["normalizer"])]
        new = change(found)
        made = sequence("normalizers", new)
        return None if new == found else {**content, "normalizer": made}

    return file(changed)


def without_forms(found: list[Content]) -> list[Content]:
    return [one for one in found if one["type"] not in FORMS]


def spaced(*, wanted: bool) -> Edit:
    """Put a space before each stretch of text, or leave out the one that belongs there."""

    def change(content: Content) -> Content | None:
        normaliser, splitter = [*parts(content["normalizer"])], [*parts(content["pre_tokenizer"])]
        has = any(adds_space(one) for one in (*normaliser, *splitter))
        if has == wanted:
            return None
        if wanted:
            normaliser = [{"type": "Prepend", "prepend": " "}, *normaliser]
        else:
            normaliser = [one for one in normaliser if not adds_space(one)]
            splitter = [without_space(one) for one in splitter]
        return {
            **content,
            "normalizer": sequence("normalizers", normaliser),
            "pre_tokenizer": sequence("pretokenizers", splitter),
        }

    return file(change)


def adds_space(one: Content) -> bool:
    if one["type"] == "Metaspace":
        return one.get("prepend_scheme", "always") != "never"
    return one["type"] == "Prepend" or (one["type"] == "ByteLevel" and one["add_prefix_space"])


def without_space(one: Content) -> Content:
    if one["type"] == "Metaspace":
        return {**one, "prepend_scheme": "never"}
    return {**one, "add_prefix_space": False} if one["type"] == "ByteLevel" else one


def without_strips(content: Content) -> Content | None:
    if not any(one["lstrip"] or one["rstrip"] for one in content["added_tokens"]):
        return None
    added = [{**one, "lstrip": False, "rstrip": False} for one in content["added_tokens"]]
    return {**content, "added_tokens": added}


def without_added(content: Content) -> Content | None:
    return {**content, "added_tokens": []} if content["added_tokens"] else None


def without_bytes(content: Content) -> Content | None:
    if not content["model"].get("byte_fallback"):
        return None
    return {**content, "model": {**content["model"], "byte_fallback": False}}


def specials_as_text(backend: Any, prompt: Any) -> Any:
    backend.encode_special_tokens = True
    return backend


MISTAKES = (
    Mistake(
        id="special-tokens-as-text",
        wrong="<|im_start|> in the pieces of its letters",
        right="<|im_start|> is one id",
        symptom="the model ignores the turns of a chat",
        where="tokens",
        fix="look for added tokens in the text first, and encode what lies between them",
        evidence=("ml-explore/mlx-lm@81cc7635 (mlx-examples #1189) [commit title only]",),
        variants={
            "special ones": Edit("backend", specials_as_text),
            "all that are added": file(without_added),
        },
    ),
    Mistake(
        id="prefix-space",
        wrong="a space too many, or one too few, before the text",
        right="as add_prefix_space, prepend_scheme or the normaliser say",
        symptom="another first word",
        where="tokens",
        fix="put a space in front where tokenizer.json says so, and only there",
        evidence=("kekzl/imp@750aebd [commit title only]", "kekzl/imp@10f2c33 [commit title only]"),
        variants={
            "before the prompt": Edit("text", lambda found, p: spaced_text(found)),
            "before each stretch of text": spaced(wanted=True),
            "missing": spaced(wanted=False),
        },
    ),
    Mistake(
        id="pretokeniser-regex",
        wrong="the text is split by another pattern",
        right="by the pattern of tokenizer.json",
        symptom="bad arithmetic, odd rare tokens",
        where="tokens",
        fix="split with the pattern of pre_tokenizer, digits included, in an engine that knows \\p",
        evidence=("ggml-org/llama.cpp#6920", "ggml-org/llama.cpp#7063", "ggml-org/llama.cpp#3502",
                  "1bit-MONSTER/1bit-MONSTER#92"),
        variants={
            **{name: split_by(pattern) for name, pattern in PATTERNS.items()},
            "none": split_by(None),
        },
    ),
    Mistake(
        id="normaliser-changed",
        wrong="another Unicode form",
        right="the form of tokenizer.json's normaliser",
        symptom="letters with accents become other tokens",
        where="tokens",
        fix="normalise as tokenizer.json says, before anything is split",
        variants={
            "no form": normalised(without_forms),
            "NFC": normalised(lambda found: [{"type": "NFC"}, *without_forms(found)]),
            "NFD": normalised(lambda found: [{"type": "NFD"}, *without_forms(found)]),
            "NFKC": normalised(lambda found: [{"type": "NFKC"}, *without_forms(found)]),
            "lower case": normalised(lambda found: [{"type": "Lowercase"}, *found]),
        },
    ),
    Mistake(
        id="added-token-strips",
        wrong="the spaces beside an added token stay",
        right="lstrip and rstrip of an added token take them",
        symptom="a lone space or line feed behind each marker",
        where="tokens",
        fix="drop the white space that lstrip and rstrip of added_tokens name",
        variants={"": file(without_strips)},
    ),
    Mistake(
        id="byte-fallback-missing",
        wrong="<unk>",
        right="<0xE6> <0x97> <0xA5>: the bytes of what has no token",
        symptom="rare characters and emoji are lost",
        where="tokens",
        fix="spell what the vocabulary lacks as byte tokens, where model.byte_fallback says so",
        variants={"": file(without_bytes)},
    ),
)  # fmt: skip


def spaced_text(found: Any) -> Any:
    return type(found)(" " + found.text, found.specials)
