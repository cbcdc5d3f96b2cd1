"""Fails unless the wheel holds the files of the three packages: every one, and nothing else."""

import sys
import zipfile
from pathlib import Path

PACKAGES = ("reference", "fast", "parity")


def in_source(root: Path) -> set[str]:
    """Name every file of the packages as the wheel should name it."""
    files = (path for package in PACKAGES for path in (root / package).rglob("*"))
    kept = (path for path in files if path.is_file() and "__pycache__" not in path.parts)
    return {"lockstep/__init__.py", *(f"lockstep/{path.relative_to(root)}" for path in kept)}


def in_wheel(wheel: Path) -> set[str]:
    """Name every file of the wheel, its own metadata apart."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def main(root: str, wheel: str) -> str | None:
    """Return what is wrong, for `sys.exit`, or None."""
    expected, found = in_source(Path(root)), in_wheel(Path(wheel))
    if expected == found:
        return None
    return f"{wheel}: missing {sorted(expected - found)}, unexpected {sorted(found - expected)}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
