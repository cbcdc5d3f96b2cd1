"""Containment: X01 to X07 of the ways out of a model's folder. By hand."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.reference.checkpoint.folder import check_name, exists_in, file_in, foreign_link

Refuses = Callable[[Callable[[], object], str], str]
INDEX = Path("model.safetensors.index.json")

ESCAPES = (
    "../../etc/passwd",
    "a/../../x",
    "./x",
    "a/b",
    "/etc/passwd",
    "~",
    "~root/x",
    "file://x",
    "http:x",
    "C:\\x",
    "C:x",
    "\\\\host\\share",
    "a\\b",
)
BAD = ("", ".", "..", "...", "a\0b", "a\nb", "a b", "\u202ex", "\ud800", "\u00e9", "x" * 5000)


@pytest.mark.parametrize("name", ESCAPES)
def test_names_that_lead_away(name: str, refuses: Refuses) -> None:
    refuses(lambda: check_name(name, INDEX), "escapes the model's folder")


@pytest.mark.parametrize("name", [*BAD, 1, None, True, ["x"], {"x": 1}])
def test_names_that_are_none(name: object, refuses: Refuses) -> None:
    refuses(lambda: check_name(name, INDEX), "bad shard name")


def test_plain_names_pass() -> None:
    for name in ("model.safetensors", "model-00001-of-00002.safetensors", "A_b.1", "x" * 255):
        assert check_name(name, INDEX) == name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "mm").mkdir()
    (tmp_path / "m" / "real").write_bytes(b"real")
    (tmp_path / "mm" / "other").write_bytes(b"other")
    return tmp_path / "m"


def test_files_and_inner_links_are_followed(folder: Path) -> None:
    (folder / "link").symlink_to("real")
    assert file_in(folder, "link").read_bytes() == b"real"
    assert file_in(folder, "real").read_bytes() == b"real"


# "../mm" also has the folder's path as its first letters.
@pytest.mark.parametrize("target", ["../mm/other", "/etc/passwd", "/dev/zero", ".."])
def test_links_out_are_refused(folder: Path, target: str, refuses: Refuses) -> None:
    (folder / "link").symlink_to(target)
    refuses(lambda: file_in(folder, "link"), "symbolic link leads out of the model's folder")


def test_links_to_links_are_judged_by_their_end(folder: Path, refuses: Refuses) -> None:
    (folder / "first").symlink_to("second")
    (folder / "second").symlink_to("../mm/other")
    refuses(lambda: file_in(folder, "first"), "symbolic link leads out")


def test_links_through_a_linked_folder_are_refused(folder: Path, refuses: Refuses) -> None:
    (folder / "sub").symlink_to("../mm")
    (folder / "link").symlink_to("sub/other")
    refuses(lambda: file_in(folder, "link"), "symbolic link leads out")


def test_links_to_nothing_are_refused(folder: Path, refuses: Refuses) -> None:
    (folder / "dangling").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")
    assert exists_in(folder, "dangling") and not exists_in(folder, "missing")
    for name in ("dangling", "loop"):
        refuses(lambda name=name: file_in(folder, name), "leads nowhere or in a circle")


def cache(tmp_path: Path, repository: str = "models--org--name") -> Path:
    root = tmp_path / repository
    for part in ("blobs", "snapshots/abc"):
        (root / part).mkdir(parents=True)
    (root / "blobs" / "y").write_bytes(b"blob")
    return root / "snapshots" / "abc"


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    snapshot = cache(tmp_path)
    (snapshot / "x").symlink_to("../../blobs/y")
    assert file_in(snapshot, "x").read_bytes() == b"blob"
    # Reached by a link of the user's own, it is the same folder.
    (tmp_path / "mine").symlink_to(snapshot)
    assert file_in(tmp_path / "mine", "x").read_bytes() == b"blob"


def test_links_between_two_models_of_the_cache_are_refused(
    tmp_path: Path, refuses: Refuses
) -> None:
    snapshot = cache(tmp_path)
    cache(tmp_path, "models--org--other")
    (snapshot / "x").symlink_to("../../../models--org--other/blobs/y")
    refuses(lambda: file_in(snapshot, "x"), "symbolic link leads out")


def test_blobs_of_a_folder_that_is_no_cache_are_refused(tmp_path: Path, refuses: Refuses) -> None:
    snapshot = cache(tmp_path, "something")
    (snapshot / "x").symlink_to("../../blobs/y")
    refuses(lambda: file_in(snapshot, "x"), "symbolic link leads out")


def test_foreign_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = folder / "real"
    assert not foreign_link(real)
    os.link(real, folder / "twin")
    assert not foreign_link(real)
    owner = real.stat().st_uid
    monkeypatch.setattr("lockstep.reference.checkpoint.folder.os.geteuid", lambda: owner + 1)
    assert foreign_link(real)
