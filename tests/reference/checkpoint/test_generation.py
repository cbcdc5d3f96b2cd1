"""End-of-text tokens. By hand: the order of the two files, and C14."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.generation import GENERATION, read_generation

Refuses = Callable[[Callable[[], object], str], str]


def eos(folder: Path, own: Any, text: str | None = None) -> set[int]:
    if text is not None:
        (folder / GENERATION).write_text(text, encoding="utf-8")
    return set(read_generation(folder, folder / "config.json", own, 48).eos_token_ids)


def test_config_alone(tmp_path: Path) -> None:
    assert eos(tmp_path, 2) == {2}
    assert eos(tmp_path, [2, 3, 2]) == {2, 3}
    assert eos(tmp_path, None) == set()


def test_generation_config_comes_first(tmp_path: Path) -> None:
    assert eos(tmp_path, 2, '{"eos_token_id": [5, 0], "top_k": 20}') == {0, 5}
    assert eos(tmp_path, 2, '{"eos_token_id": 47}') == {47}
    assert eos(tmp_path, 2, '{"eos_token_id": null}') == {2}
    assert eos(tmp_path, 2, '{"temperature": "anything"}') == {2}


@pytest.mark.parametrize("value", ['"2"', "-1", "48", "2.0", "true", "[2, null]", "[[2]]", "{}"])
def test_c14_bad_ids(value: str, tmp_path: Path, refuses: Refuses) -> None:
    line = refuses(lambda: eos(tmp_path, 2, f'{{"eos_token_id": {value}}}'), "bad token id")
    assert GENERATION in line and "ids go from 0 to 47" in line


def test_c14_bad_ids_of_config(tmp_path: Path, refuses: Refuses) -> None:
    assert "config.json: " in refuses(lambda: eos(tmp_path, [2, 48]), "bad token id 48")


def test_c14_too_many(tmp_path: Path, refuses: Refuses) -> None:
    refuses(lambda: eos(tmp_path, [1] * 1001), "lists 1001 tokens, the limit is 1000")


def test_the_file_itself_is_read_strictly(tmp_path: Path, refuses: Refuses) -> None:
    refuses(lambda: eos(tmp_path, 2, "[]"), "generation config must be a JSON object")
    refuses(lambda: eos(tmp_path, 2, '{"a": 1, "a": 2}'), "duplicate key 'a'")


def test_an_end_that_is_no_token_may_be_left_unread(model: Any, refuses: Refuses) -> None:
    """By transformers: GPT2Config(vocab_size=48) keeps the eos_token_id 50256, and only warns."""
    model.config["eos_token_id"] = 50256
    folder = model.save()
    (folder / "generation_config.json").write_text('{"eos_token_id": 50256}', encoding="utf-8")
    advice = "bad token id 50256 in eos_token_id; --ignore-config eos_token_id reads no end of text"
    refuses(lambda: open_checkpoint(folder), advice)
    opened = open_checkpoint(folder, ignore_config=["eos_token_id"])
    assert opened.generation.eos_token_ids == frozenset()
    assert opened.warnings == ["config keys ignored on request: 'eos_token_id'"]
