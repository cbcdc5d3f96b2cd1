"""Fields of a document that anyone may have written: each is what it should be, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, clip_end, escape, show

NOT_FINITE = {"nan", "inf", "-inf"}
NAME, PROSE = 240, 1500  # bytes of a name and of a sentence that are shown


def clean(text: str, limit: int = PROSE) -> str:
    """Return text without anything that steers: no report ever sees what a file held raw."""
    return clip_end(escape(text[: limit + 1]), limit)


@dataclass(frozen=True)
class Fields:
    """One object of the document; `where` is the path to it.

    Every method raises InputError with the field's path if its value is of another kind. A field
    that is not there is as null.
    """

    values: dict[str, Any]
    path: str
    where: str = ""

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def refuse(self, name: str, wanted: str) -> InputError:
        what = f"{self.where}{name} should be {wanted}, not {show(self.get(name), 40)}"
        return InputError(self.path, what)

    def text(self, name: str, limit: int = PROSE) -> str:
        """Return a text, "" if it is null."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refuse(name, "a text")
        return clean(value or "", limit)

    def number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self.refuse(name, "a number")
        if isinstance(value, str) and value not in NOT_FINITE:
            raise self.refuse(name, "a number")
        return float(value)

    def whole(self, name: str) -> int:
        """Return a count, 0 if it is null."""
        value = self.get(name)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refuse(name, "a whole number, 0 or more")
        return value

    def items(self, name: str, kind: type, wanted: str) -> list[Any]:
        """Return a list whose entries are all of one kind; an empty one if it is null."""
        value = self.get(name)
        if value is None:
            return []
        wrong = not isinstance(value, list) or any(
            not isinstance(one, kind) or isinstance(one, bool) for one in value
        )
        if wrong:
            raise self.refuse(name, f"a list of {wanted}")
        return value

    def texts(self, name: str, limit: int = PROSE) -> tuple[str, ...]:
        return tuple(clean(one, limit) for one in self.items(name, str, "texts"))

    def wholes(self, name: str) -> tuple[int, ...]:
        return tuple(self.items(name, int, "whole numbers"))

    def objects(self, name: str) -> Iterator[Fields]:
        for index, one in enumerate(self.items(name, dict, "objects")):
            yield Fields(one, self.path, f"{self.where}{name}[{index}].")

    def object(self, name: str) -> Fields | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return Fields(value, self.path, f"{self.where}{name}.")
