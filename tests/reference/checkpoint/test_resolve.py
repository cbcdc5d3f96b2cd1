"""From MODEL to a folder. By hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.resolve import hub_cache, is_gguf, resolve_model

Refuses = Callable[[Callable[[], object], str], str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of org/name in a cache of its own, and go where no model is."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    root = tmp_path / "hub" / "models--org--na.me"
    (root / "refs").mkdir(parents=True)
    (root / "snapshots" / "abc123").mkdir(parents=True)
    (root / "refs" / "main").write_text("abc123\n", encoding="utf-8")
    return root


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(f"{tmp_path}/") == tmp_path


def test_a_hub_name(cache: Path) -> None:
    assert resolve_model("org/na.me") == cache / "snapshots" / "abc123"


def test_a_folder_comes_before_the_cache(cache: Path) -> None:
    Path("org/na.me").mkdir(parents=True)
    assert resolve_model("org/na.me") == Path("org/na.me")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/a")
    monkeypatch.setenv("HF_HOME", "/b")
    assert hub_cache() == Path("/a")
    monkeypatch.delenv("HF_HUB_CACHE")
    assert hub_cache() == Path("/b/hub")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert hub_cache() == Path("/c/huggingface/hub")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/d")
    assert hub_cache() == Path("/d/.cache/huggingface/hub")


def test_no_home(monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    refuses(hub_cache, "no home folder to look for models in")


REFUSED = {
    "": "not a path to a model",
    "a\0b": "not a path to a model",
    "missing": "no such folder",
    "a/b/c": "no such folder",
    "../x": "no such folder",
    "~/x": "no such folder",
    "\ud800": "no such folder",
    "org/other": "no such folder, and not in the local Hugging Face cache",
    "hf://org/name": "is an address: models are read from a folder, never downloaded",
    "https://x/y": "is an address",
    "x" * 5000: "cannot be opened",
    "/dev/null": "is neither a folder with config.json and safetensors nor a .gguf file",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, cache: Path, refuses: Refuses) -> None:
    refuses(lambda: resolve_model(name), REFUSED[name])


def test_one_file_of_a_folder_is_no_model(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    refuses(lambda: resolve_model(tmp_path / "model.safetensors"), "(give its folder)")


def test_a_folder_without_a_config_says_what_to_give(tmp_path: Path, refuses: Refuses) -> None:
    assert "(" not in refuses(lambda: open_checkpoint(tmp_path), "config.json: no such file")
    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    refuses(lambda: open_checkpoint(tmp_path), "(a GGUF file is a model by itself: give 'a.gguf')")
    (tmp_path / "adapter_config.json").touch()
    refuses(lambda: open_checkpoint(tmp_path), "this with --adapter)")


def test_a_gguf_file_is_itself(tmp_path: Path) -> None:
    (tmp_path / "x.GGUF").write_bytes(b"GGUF")
    assert resolve_model(tmp_path / "x.GGUF") == tmp_path / "x.GGUF"
    (tmp_path / "folder.gguf").mkdir()
    assert is_gguf(tmp_path / "x.GGUF") and not is_gguf(tmp_path / "folder.gguf")


@pytest.mark.parametrize("revision", ["..", "../x", "a/b", "", "x" * 99, "\x1b[0m"])
def test_a_reference_that_leads_away(revision: str, cache: Path, refuses: Refuses) -> None:
    (cache / "refs" / "main").write_text(revision, encoding="utf-8")
    refuses(lambda: resolve_model("org/na.me"), "bad revision" if revision else "file is empty")


def test_a_cache_that_is_not_complete(cache: Path, refuses: Refuses) -> None:
    (cache / "snapshots" / "abc123").rmdir()
    refuses(lambda: resolve_model("org/na.me"), "the local Hugging Face cache has no snapshot")
    (cache / "refs" / "main").unlink()
    refuses(lambda: resolve_model("org/na.me"), "no such file")
