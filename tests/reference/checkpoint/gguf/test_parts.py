"""A model in several GGUF files, sound or not, each fault with the line that it must give.

Truth: by hand. Three parts: metadata alone, then the tensors in two files.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests import gguf_bytes as g

TOTAL = len(g.TENSORS)
NAMES = list(g.TENSORS)
SHARES: list[list[str]] = [[], NAMES[:6], NAMES[6:]]
VOCABULARY = [
    g.pair("tokenizer.ggml.model", g.STRING, "gpt2"),
    g.pair("tokenizer.ggml.pre", g.STRING, "gpt-2"),
    g.array("tokenizer.ggml.tokens", g.STRING, list("abcdefghij")),
    g.array("tokenizer.ggml.merges", g.STRING, []),
]


def name(number: int, count: int = 3) -> str:
    return f"m-{number + 1:05d}-of-{count:05d}.gguf"


def split_keys(number: int, **changes) -> list[bytes]:
    """Return the keys of a part. A change of None leaves one out, a tuple says its type too."""
    keys = {"split.no": number, "split.count": 3, "split.tensors.count": TOTAL} | changes
    typed = {key: one if isinstance(one, tuple) else (g.U16, one) for key, one in keys.items()}
    return [g.pair(key, *one) for key, one in typed.items() if one[1] is not None]


def part(number: int, tensors: list[str] | None = None, extra=(), **changes) -> bytes:
    pairs = split_keys(number, **changes) + list(extra)
    if number == 0:
        pairs += [g.pair("general.architecture", g.STRING, "qwen3"), *VOCABULARY]
        pairs += [g.pair(key, *value) for key, value in g.HYPERPARAMETERS.items()]
    chosen = SHARES[number] if tensors is None else tensors
    return g.container(pairs, *g.laid_out({one: g.TENSORS[one] for one in chosen}))


def write(folder: Path, *changed: tuple[int, bytes | None]) -> Path:
    """Write the three parts; a change of None leaves one out. Return the first."""
    for number in range(3):
        (folder / name(number)).write_bytes(part(number))
    for number, data in changed:
        (folder / name(number)).unlink()
        if data is not None:
            (folder / name(number)).write_bytes(data)
    return folder / name(0)


def test_the_parts_are_one_model(tmp_path):
    first = write(tmp_path)
    checkpoint = open_checkpoint(first)
    (tmp_path / "whole.gguf").write_bytes(g.model())
    whole = open_checkpoint(tmp_path / "whole.gguf")
    assert checkpoint.config == whole.config and checkpoint.names == whole.names
    assert checkpoint.path == first and checkpoint.warnings == []
    for one in whole.names:
        assert checkpoint.stored(one) == whole.stored(one)
        assert checkpoint.tensor(one).shape == whole.tensor(one).shape
    assert checkpoint.tensor_rows("model.embed_tokens.weight", 2, 5).shape == (3, 32)
    with pytest.raises(KeyError):
        checkpoint.tensor("lm_head.weight")
    assert load_tokenizer(first).encode("abc") == [0, 1, 2]


def test_numbers_are_read_from_the_part_that_has_them(tmp_path):
    """The last tensor of each part ends its file; each gets a number of its own."""
    first = write(tmp_path)
    for number, value in ((1, b"\0\0\0\x40"), (2, b"\0\0\x80\x3f")):
        path = tmp_path / name(number)
        path.write_bytes(path.read_bytes()[:-4] + value)
    checkpoint = open_checkpoint(first)
    assert SHARES[2][-1] == "output_norm.weight"
    assert checkpoint.tensor("model.norm.weight")[-1] == 1.0
    assert SHARES[1][-1] == "blk.0.attn_output.weight"
    weight = checkpoint.tensor("model.layers.0.self_attn.o_proj.weight")
    assert weight[-1, -1] == 2.0 and checkpoint.tensor("model.norm.weight")[0] == 0.0


def test_one_part_of_one_is_a_whole_file(tmp_path):
    path = tmp_path / "any.gguf"
    path.write_bytes(g.model(extra=split_keys(0, **{"split.count": 1})))
    assert open_checkpoint(path).has("model.norm.weight")


def test_links_of_a_hub_cache_are_parts(tmp_path):
    """There each name of a snapshot is a link to a blob of the same repository."""
    home = tmp_path / "models--a--b"
    snapshot, blobs = home / "snapshots" / "1", home / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for number in range(3):
        (blobs / str(number)).write_bytes(part(number))
        (snapshot / name(number)).symlink_to(blobs / str(number))
    assert open_checkpoint(snapshot / name(0)).has("model.norm.weight")


# id: what differs from the three parts, and the file and the line that are to be named.
CASES: dict[str, tuple[list[tuple[int, bytes | None]], int, str]] = {
    "missing": (
        [(1, None)], 0,
        "part 2 of 3 is missing (there is no 'm-00002-of-00003.gguf' beside it)",
    ),
    "empty": ([(2, b"")], 2, "file is empty"),
    "no GGUF": ([(2, b"x" * 99)], 2, "not a GGUF file"),
    "truncated": ([(1, part(1)[:-8])], 1, "file truncated"),
    "another part": ([(1, part(2))], 1, "split.no must be 1 in part 2 of 3 (found 2)"),
    "no number": (
        [(1, part(1, **{"split.no": None}))], 1,
        "split.no must be 1 in part 2 of 3 (found null)",
    ),
    "a bool": (
        [(1, part(1, **{"split.no": (g.BOOL, 1)}))], 1,
        "split.no must be 1 in part 2 of 3 (found true)",
    ),
    "another count": (
        [(2, part(2, **{"split.count": 4}))], 2,
        "split.count must be 3 in part 3 of 3 (found 4)",
    ),
    "other tensors": (
        [(2, part(2, **{"split.tensors.count": 9}))], 2,
        f"split.tensors.count must be {TOTAL} in part 3 of 3 (found 9)",
    ),
    "twice": (
        [(2, part(2, [NAMES[0], *SHARES[2]]))], 2,
        "tensor 'token_embd.weight' is in part 2 and in part 3",
    ),
    "too few": (
        [(2, part(2, SHARES[2][:-1]))], 0,
        f"the 3 parts have {TOTAL - 1} tensors, split.tensors.count is {TOTAL}",
    ),
    "of another model": (
        [(2, part(2, extra=[g.pair("qwen3.block_count", g.U32, 2)]))], 2,
        "metadata 'qwen3.block_count' is 2, in part 1 it is 1",
    ),
    "no total": (
        [(0, part(0, **{"split.tensors.count": None}))], 0,
        "metadata split.tensors.count must be an integer from 1 to 65536 (found nothing)",
    ),
    "count of 70000": (
        [(0, part(0, **{"split.count": (g.U32, 70_000)}))], 0,
        "metadata split.count must be an integer from 0 to 1000 (found 70000)",
    ),
    "negative count": (
        [(0, part(0, **{"split.count": (g.I32, -3)}))], 0,
        "impossible count of tensors: 0, 1 to",
    ),
    "a negative count, with tensors": (
        [(0, part(0, NAMES[:1], **{"split.count": (g.I32, -3)}))], 0,
        "metadata split.count must be an integer from 0 to 1000 (found -3)",
    ),
    "count as text": (
        [(0, part(0, NAMES[:1], **{"split.count": (g.STRING, "3")}))], 0,
        "metadata split.count must be an integer from 0 to 1000 (found '3')",
    ),
    "first without a number": (
        [(0, part(0, **{"split.no": None}))], 0,
        "metadata split.no must be an integer from 0 to 2 (found nothing)",
    ),
    "number beyond the count": (
        [(0, part(0, **{"split.no": 3}))], 0,
        "metadata split.no must be an integer from 0 to 2 (found 3)",
    ),
    "bytes after metadata alone": (
        [(0, part(0) + bytes(64))], 0,
        "64 bytes after the last tensor belong to no tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opens", [open_checkpoint, load_tokenizer])
def test_refused(case, opens, tmp_path, refuses):
    changed, number, core = CASES[case]
    first = write(tmp_path, *changed)
    line = refuses(lambda: opens(first), core)
    assert line.startswith(f"{tmp_path / name(number)}: ")


def test_only_the_first_part_is_opened(tmp_path, refuses):
    write(tmp_path)
    core = "is part 3 of 3: give the first one, 'm-00001-of-00003.gguf'"
    refuses(lambda: open_checkpoint(tmp_path / name(2)), core)
    (tmp_path / name(2)).rename(tmp_path / "x.gguf")
    line = refuses(lambda: open_checkpoint(tmp_path / "x.gguf"), "is part 3 of 3: give the first")
    assert line.endswith("give the first one")


@pytest.mark.parametrize("other", ["m.gguf", "m-1-of-3.gguf", name(0, 4), name(1)])
def test_the_name_must_say_which_part_it_is(other, tmp_path, refuses):
    write(tmp_path).rename(tmp_path / other)
    core = "is part 1 of 3, its name must end with -00001-of-00003.gguf"
    refuses(lambda: open_checkpoint(tmp_path / other), core)


def elsewhere(folder: Path) -> None:
    outside = folder.parent / "outside.gguf"
    outside.write_bytes(part(1))
    (folder / name(1)).symlink_to(outside)


def fifo(folder: Path) -> None:
    os.mkfifo(folder / name(1))


PLACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "elsewhere": (elsewhere, "symbolic link leads out of the model's folder"),
    "nowhere": (lambda folder: (folder / name(1)).symlink_to("x"), "link leads nowhere"),
    "a folder": (lambda folder: (folder / name(1)).mkdir(), "not a regular file"),
    "a FIFO": (fifo, "not a regular file"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_part_that_is_no_file_beside_the_first(case, tmp_path, refuses):
    folder = tmp_path / "model"
    folder.mkdir()
    first, (make, core) = write(folder, (1, None)), PLACES[case]
    make(folder)
    line = refuses(lambda: open_checkpoint(first), core)
    assert line.startswith(f"{folder / name(1)}: ")


def test_a_part_that_changes_is_noticed(tmp_path):
    first = write(tmp_path)
    checkpoint = open_checkpoint(first)
    path = tmp_path / name(2)
    path.write_bytes(path.read_bytes() + bytes(32))
    with pytest.raises(InputError, match="changed"):
        checkpoint.tensor("model.norm.weight")
    assert checkpoint.tensor("model.embed_tokens.weight").shape == (10, 32)
