"""Sharded checkpoints: X01 to X14 of what an index can get wrong. By hand, and by witness where the
safetensors package wrote the shards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.reference.checkpoint import sharded
from lockstep.reference.checkpoint.sharded import INDEX, SINGLE, Shards

Refuses = Callable[[Callable[[], object], str], str]
SaveTensors = Callable[..., Path]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def save(tmp_path: Path, save_tensors: SaveTensors) -> Callable[..., Path]:
    """Return a function that writes a folder of two shards with tensors a, b and c, d."""

    def build(weight_map: Any = None, *, raw: bytes | None = None, **index: Any) -> Path:
        save_tensors(tmp_path / FIRST, {"a": np.arange(3), "b": np.zeros((2, 2), np.float16)})
        save_tensors(tmp_path / SECOND, {"c": np.arange(5), "d": np.ones(1, np.float32)})
        if weight_map is None:
            weight_map = {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND}
        text = json.dumps({"weight_map": weight_map, **index}).encode()
        (tmp_path / INDEX).write_bytes(text if raw is None else raw)
        return tmp_path

    return build


MAP = {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND}


def test_reads_every_shard(save: Callable[..., Path]) -> None:
    shards = Shards(save(metadata={"total_size": 24 + 8 + 40 + 4}))
    assert sorted(shards.names) == ["a", "b", "c", "d"]
    assert "a" in shards and "e" not in shards
    assert shards.read("c").tolist() == [0, 1, 2, 3, 4]
    assert shards.read_rows("c", 1, 3).tolist() == [1, 2]
    assert shards.entry("b").shape == (2, 2)
    assert shards.path_of("d").name == SECOND
    assert shards.warnings == []


def test_reads_a_single_file(tmp_path: Path, save_tensors: SaveTensors) -> None:
    save_tensors(tmp_path / SINGLE, {"a": np.arange(3)})
    assert Shards(tmp_path).read("a").tolist() == [0, 1, 2]


def test_an_index_of_the_single_file_is_what_mlx_lm_writes(
    tmp_path: Path, save_tensors: SaveTensors
) -> None:
    save_tensors(tmp_path / SINGLE, {"a": np.arange(3)})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": SINGLE}}), encoding="utf-8")
    assert Shards(tmp_path).names == ["a"]


ESCAPES = ("../../etc/passwd", "a/../../x", "/etc/passwd", "~", "C:\\x", "file://x", "..\\x")
BAD_NAMES = ("", ".", "..", "a\0", "a\n", "x" * 5000, 1, None, ["x"], {"a": "x"})
BAD_INDEXES: dict[str, tuple[bytes, str]] = {
    "X10 list": (b'{"weight_map": []}', "bad index: weight_map must be an object"),
    "X10 empty": (b'{"weight_map": {}}', "bad index: weight_map must be an object"),
    "X10 missing": (b"{}", "bad index: weight_map must be an object"),
    "X10 null": (b'{"weight_map": null}', "(got null)"),
    "X10 no object": (b"[]", "index must be a JSON object"),
    "X10 twice": (b'{"weight_map": {"a": "x", "a": "y"}}', "duplicate key 'a'"),
    "X14 deep": (b'{"a":' * 100_000, "index is nested deeper than 8 levels"),
    "X14 mark": (b"\xef\xbb\xbf{}", "byte-order mark"),
    "X14 UTF-16": ("{}".encode("utf-16"), "index is not UTF-8"),
    "X14 NaN": (b'{"weight_map": {"a": NaN}}', "NaN is not a JSON number"),
    "X14 empty": (b"", "file is empty"),
    "X14 cut": (b'{"weight_map": {"a"', "index is not valid JSON at byte 19"),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_x01_to_x03_names_that_lead_away(
    name: str, save: Callable[..., Path], refuses: Refuses
) -> None:
    folder = save({**MAP, "d": name})
    line = refuses(lambda: Shards(folder), "escapes the model's folder")
    assert INDEX in line


@pytest.mark.parametrize("name", BAD_NAMES)
def test_x07_names_that_are_none(name: Any, save: Callable[..., Path], refuses: Refuses) -> None:
    folder = save({**MAP, "d": name})
    refuses(lambda: Shards(folder), "bad shard name")


@pytest.mark.parametrize("case", BAD_INDEXES)
def test_x10_x14_bad_indexes(case: str, save: Callable[..., Path], refuses: Refuses) -> None:
    data, core = BAD_INDEXES[case]
    folder = save(raw=data)
    refuses(lambda: Shards(folder), core)


def test_x14_an_index_that_is_too_large(save: Callable[..., Path], refuses: Refuses) -> None:
    folder = save()
    os.truncate(folder / INDEX, 200_000_000)
    refuses(lambda: Shards(folder), "file of 200000000 bytes is over the limit of 33554432")


def test_x04_a_shard_that_is_a_link_out(
    save: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, refuses: Refuses
) -> None:
    folder = save()
    outside = tmp_path_factory.mktemp("outside") / "x"
    shutil.move(folder / FIRST, outside)
    (folder / FIRST).symlink_to(outside)
    refuses(lambda: Shards(folder), "symbolic link leads out of the model's folder")


def test_x05_a_hard_link_to_another_users_file(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save()
    os.link(folder / FIRST, folder / "twin")
    owner = (folder / FIRST).stat().st_uid
    monkeypatch.setattr("lockstep.reference.checkpoint.folder.os.geteuid", lambda: owner + 1)
    warnings = Shards(folder).warnings
    assert warnings == [f"{FIRST}: has another name elsewhere and belongs to another user"]


def test_x06_missing_shards(save: Callable[..., Path], refuses: Refuses) -> None:
    folder = save()
    (folder / SECOND).unlink()
    refuses(lambda: Shards(folder), f"missing shard '{SECOND}'")
    (folder / SECOND).mkdir()
    refuses(lambda: Shards(folder), "not a regular file")
    (folder / SECOND).rmdir()
    os.mkfifo(folder / SECOND)
    refuses(lambda: Shards(folder), "not a regular file")


def test_x06_an_index_that_names_itself(save: Callable[..., Path], refuses: Refuses) -> None:
    folder = save({**MAP, "d": INDEX})
    refuses(lambda: Shards(folder), "is not a .safetensors file")


def test_x06_other_files_in_the_folder_do_not_matter(
    save: Callable[..., Path], save_tensors: SaveTensors
) -> None:
    folder = save()
    save_tensors(folder / "consolidated.safetensors", {"z": np.zeros(1)})
    assert "z" not in Shards(folder)


def test_x08_names_that_macos_takes_for_one(save: Callable[..., Path], refuses: Refuses) -> None:
    folder = save({**MAP, "d": SECOND.replace("model", "Model")})
    shutil.copy(folder / SECOND, folder / SECOND.replace("model", "Model"))
    refuses(lambda: Shards(folder), "ambiguous shard names")


X09: dict[str, tuple[dict[str, str], str]] = {
    "listed, not there": ({**MAP, "e": FIRST}, "not in their shard: 'e'"),
    "wrong shard": ({**MAP, "a": SECOND}, "not in their shard: 'a'"),
    "not listed": ({"a": FIRST, "b": FIRST, "c": SECOND}, "does not list for this shard: 'd'"),
    "many": (
        {**MAP, **dict.fromkeys("efghi", FIRST)},
        "not in their shard: 'e', 'f', 'g' and 2 more",
    ),
}


@pytest.mark.parametrize("case", X09)
def test_x09_index_and_shards_disagree(
    case: str, save: Callable[..., Path], refuses: Refuses
) -> None:
    weight_map, core = X09[case]
    folder = save(weight_map)
    refuses(lambda: Shards(folder), core)


def test_x09_one_name_in_two_shards(
    save: Callable[..., Path], save_tensors: SaveTensors, refuses: Refuses
) -> None:
    folder = save()
    save_tensors(folder / SECOND, {"a": np.arange(9), "c": np.arange(5), "d": np.ones(1)})
    line = refuses(lambda: Shards(folder), "the index does not list for this shard: 'a'")
    assert SECOND in line


@pytest.mark.parametrize("size", [1, -1, 10**20, 2.5, "76", [76]])
def test_x11_a_wrong_total_is_only_mentioned(size: Any, save: Callable[..., Path]) -> None:
    warnings = Shards(save(metadata={"total_size": size})).warnings
    assert len(warnings) == 1
    assert "but the tensors take 76 bytes" in warnings[0]


def test_x12_too_many_shards(save: Callable[..., Path], refuses: Refuses) -> None:
    folder = save({f"t{i}": f"s{i}.safetensors" for i in range(10_001)})
    refuses(lambda: Shards(folder), "too many shards: the limit is 10000")


def test_x13_index_and_single_file(
    save: Callable[..., Path], save_tensors: SaveTensors, refuses: Refuses
) -> None:
    folder = save()
    save_tensors(folder / SINGLE, {"a": np.arange(3)})
    refuses(lambda: Shards(folder), f"ambiguous: the folder also holds {SINGLE}")


def test_x13_pickles(save: Callable[..., Path], tmp_path: Path, refuses: Refuses) -> None:
    folder = save({**MAP, "d": "pytorch_model.bin"})
    refuses(lambda: Shards(folder), "is not a .safetensors file: pickles are never read")
    (folder / INDEX).unlink()
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}", encoding="utf-8")
    core = "'pytorch_model.bin.index.json' is a pickle, which is never read"
    refuses(lambda: Shards(folder), core)


def test_nothing_to_read(tmp_path: Path, refuses: Refuses) -> None:
    refuses(lambda: Shards(tmp_path), "no model.safetensors and no model.safetensors.index.json")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    refuses(lambda: Shards(tmp_path), "a GGUF file is a model by itself: give 'x.gguf'")
    refuses(lambda: Shards(tmp_path / "missing"), "cannot be listed")


def test_a_shard_that_lies_is_refused_under_its_own_name(
    save: Callable[..., Path], refuses: Refuses
) -> None:
    folder = save()
    os.truncate(folder / SECOND, (folder / SECOND).stat().st_size - 1)
    line = refuses(lambda: Shards(folder), "file truncated")
    assert SECOND in line


def test_the_limits_are_those_of_the_documentation() -> None:
    assert (sharded.SHARD_LIMIT, sharded.INDEX_LIMITS.size) == (10_000, 32 << 20)
