"""From what the user typed to the folder, or the file, of a model. Nothing is ever downloaded."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole

PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_NAME = re.compile(rf"({PART})/({PART})")
REVISION = re.compile(r"[0-9a-f]{40}|[A-Za-z0-9._-]{1,64}")


def resolve_model(model: str | Path) -> Path:
    """Return the folder or GGUF file of a model: as it is, or a hub name from the local cache.

    Raises InputError if there is no such folder, or the cache does not hold the name.
    """
    text = str(model)
    if not text or "\0" in text:
        raise InputError(show(text), "not a path to a model")
    if "://" in text:
        raise InputError(text, "is an address: models are read from a folder, never downloaded")
    path = Path(model)
    if _is_folder(path):
        return path
    if is_gguf(path):
        return path
    if os.path.lexists(path):
        what = "is neither a folder with config.json and safetensors nor a .gguf file"
        raise InputError(path, what, "give its folder" if path.suffix == ".safetensors" else None)
    name = HUB_NAME.fullmatch(text)
    if name is None:
        raise InputError(path, "no such folder")
    return _snapshot(text, hub_cache() / f"models--{name[1]}--{name[2]}")


def is_gguf(path: Path) -> bool:
    """Tell whether a path names a GGUF file, which is a model by itself."""
    return path.suffix.lower() == ".gguf" and not _is_folder(path)


def hub_cache() -> Path:
    """Return where the Hugging Face libraries keep models on this machine."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    if home := os.environ.get("HF_HOME"):
        return Path(home) / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "huggingface" / "hub"
    except RuntimeError as error:
        raise InputError(base, f"no home folder to look for models in: {error}") from None


def _snapshot(name: str, repository: Path) -> Path:
    if not _is_folder(repository):
        raise InputError(name, "no such folder, and not in the local Hugging Face cache")
    reference = repository / "refs" / "main"
    revision = read_whole(reference, limit=100).decode(errors="replace").strip()
    if not REVISION.fullmatch(revision) or not revision.strip("."):
        raise InputError(reference, f"bad revision {show(revision)}")
    snapshot = repository / "snapshots" / revision
    if not _is_folder(snapshot):
        raise InputError(name, "the local Hugging Face cache has no snapshot", revision)
    return snapshot


def _is_folder(path: Path) -> bool:
    # Path.is_dir hides more errors in each version of Python.
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise InputError(path, f"cannot be opened: {error.strerror or error}") from None
