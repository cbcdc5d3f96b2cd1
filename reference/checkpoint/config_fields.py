"""Taking typed values out of a JSON object, remembering which keys were looked at.

Every getter names the key, what was found and what is allowed. A bool is never an integer here,
and `32.0` or `"32"` is never 32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from lockstep.reference.checkpoint.errors import InputError, show


class Fields:
    """One JSON object of a file; `prefix` is how its keys are spelled in messages."""

    def __init__(self, raw: dict[str, Any], path: Path, prefix: str = "") -> None:
        self.raw, self.path, self.prefix = raw, path, prefix
        self.used: set[str] = set()

    def get(self, key: str) -> Any:
        """Return the raw value, None if the key is missing, and count the key as used."""
        self.used.add(key)
        return self.raw.get(key)

    def integer(self, key: str, *, low: int, high: int) -> int:
        value = self.get(key)
        if type(value) is not int or not low <= value <= high:
            kind = "a positive integer" if low == 1 else "an integer"
            self.refuse(key, f"must be {kind} from {low} to {high}")
        return value

    def number(self, key: str, *, low: float, high: float) -> float:
        """Return a finite number in [low, high], written as an integer or not."""
        value = self.get(key)
        if type(value) not in (int, float) or not low <= value <= high:
            self.refuse(key, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def optional_integer(self, key: str, *, low: int, high: int) -> int | None:
        """Return an integer, or None where the key is absent or null."""
        return None if self.get(key) is None else self.integer(key, low=low, high=high)

    def optional_number(self, key: str, *, low: float, high: float) -> float | None:
        """Return a number, or None where the key is absent or null."""
        return None if self.get(key) is None else self.number(key, low=low, high=high)

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        if type(value) is not bool:
            self.refuse(key, "must be true or false")
        return value

    def boolean_or(self, key: str, missing: bool) -> bool:
        """Return a bool; `missing` is what every engine takes where the key is absent or null."""
        return missing if self.get(key) is None else self.boolean(key)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.get(key)
        if not isinstance(value, str) or value not in allowed:
            self.refuse(key, f"must be {' or '.join(map(show, allowed))}")
        return value

    def refuse(self, key: str, demand: str) -> NoReturn:
        """Raise InputError: which key, what it holds, what it must hold."""
        found = show(self.raw[key], 60) if key in self.raw else "nothing"
        raise InputError(self.path, f"field {show(self.prefix + key)} {demand}", f"found {found}")
