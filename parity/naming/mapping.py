"""A user's own map of names: a file that says what each tap is called in their dump."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.parity.naming.fused import is_product
from lockstep.parity.naming.names import is_tap, parted
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole
from lockstep.reference.checkpoint.strict_json import JsonLimits, parse_json

LAYER, OFFSET = "{layer}", "layer_offset"
SIZE, LINES, LENGTH, FARTHEST = 1 << 16, 2000, 400, 1000
LIMITS = JsonLimits(size=SIZE, entries=LINES, depth=1)
# The only YAML that is read: `key: value` from the first column on, and comments.
QUOTED = r'"[^"\\]*"|' + r"'[^']*'"
FIRST = r"[^\s:#'\"&*!|>%@`,{}\[\]-]"
ENTRY = re.compile(
    rf"(?P<key>{QUOTED}|{FIRST}[^\s:#,]*)\s*:\s+"
    rf"(?P<value>{QUOTED}|{FIRST}[^\s#]*|-[0-9]+)\s*(?:\s#.*)?"
)


@dataclass(frozen=True)
class Rule:
    """One line: the tap and their name for it, `{layer}` in both or in neither."""

    tap: str
    theirs: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class NameMap:
    """What a map file says. `offset` is added to our layer numbers to give theirs."""

    path: Path
    rules: tuple[Rule, ...]
    offset: int

    def tap(self, name: str) -> str | None:
        """Return the tap that a dumped name means by this map, None if the map has no such.

        The prefix of a step stands before both.
        """
        step, path = parted(name)
        for rule in self.rules:
            found = rule.pattern.fullmatch(path)
            if found and LAYER not in rule.theirs:
                return step + rule.tap
            if found and (layer := int(found[1]) - self.offset) >= 0:
                return step + rule.tap.replace(LAYER, str(layer))
        return None

    def mapped(self, names: Iterable[str]) -> dict[str, str]:
        """Return name -> tap of all the names that the map knows.

        Raises: InputError if two of them mean one tap, or none of them is in the map.
        """
        names = list(names)
        found: dict[str, str] = {}
        owners: dict[str, str] = {}
        for name in names:
            if (tap := self.tap(name)) is None:
                continue
            if (other := owners.setdefault(tap, name)) != name:
                both = f"{show(other, 48)} and {show(name, 48)}"
                raise InputError(self.path, f"two names mean one tap: {both}", tap)
            found[name] = tap
        if not found:
            what = f"none of the dump's {len(names)} names is in this map"
            raise InputError(
                self.path, what, f"its first name is {show(next(iter(names), ''), 48)}"
            )
        return found

    def plan(self, found: dict[str, str]) -> list[str]:
        names = f"{len(found)} name" + "s" * (len(found) > 1)
        lines = [f"{names} mapped as {self.path.name} says"]
        return lines + [f"layers counted from {self.offset}"] * bool(self.offset)


def read_map(path: str | Path) -> NameMap:
    """Read a map file: `.json`, one object of strings, or else lines `tap: their name`.

    Raises: InputError that says which line is wrong, what it holds, and what is allowed.
    """
    path = Path(path)
    data = read_whole(path, limit=SIZE)
    if path.suffix == ".json":
        read = parse_json(data, path, subject="map", limits=LIMITS)
        if not isinstance(read, dict):
            raise InputError(path, f"a map must be a JSON object, not {show(read, 40)}")
        pairs = [(key, value, "key " + show(key, 60)) for key, value in read.items()]
    else:
        pairs = list(lines_of(data, path))
    return made(path, pairs)


def lines_of(data: bytes, path: Path) -> Iterator[tuple[str, Any, str]]:
    """Yield key, value and place of each line of the one kind of YAML that is read."""
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(path, "a map must be UTF-8", f"byte {error.start}") from None
    if len(lines) > LINES:
        raise InputError(path, f"a map of {len(lines)} lines, the limit is {LINES}")
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#") or (number == 1 and line == "---"):
            continue
        found = ENTRY.fullmatch(line) if len(line) <= LENGTH else None
        if found is None:
            what = f"a line must be `tap: their name`, of at most {LENGTH} characters, not "
            raise InputError(path, what + show(line, 60), f"line {number}")
        yield bare(found["key"]), plain(found["value"]), f"line {number}"


def bare(text: str) -> str:
    return text[1:-1] if text[:1] in "'\"" else text


def plain(text: str) -> Any:
    """Return a value as YAML would have it, as far as that is a string or a whole number."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,4}", text) else bare(text)


def made(path: Path, pairs: list[tuple[str, Any, str]]) -> NameMap:
    """Check every entry, and that none says the same as another."""
    offset, rules, seen = 0, [], dict[str, str]()
    for key, value, where in pairs:
        for side, text in (("tap", key), ("name", f"{value}")):
            if (other := seen.setdefault(f"{side} {text}", where)) != where:
                what = f"{side} {show(text, 60)} is there twice, first in {other}"
                raise InputError(path, what, where)
        if key == OFFSET:
            offset = checked_offset(path, value, where)
        else:
            rules.append(rule(path, key, value, where))
    if not rules:
        raise InputError(path, "a map with no entries")
    return NameMap(path, tuple(rules), offset)


def checked_offset(path: Path, value: Any, where: str) -> int:
    if type(value) is not int or not -FARTHEST <= value <= FARTHEST:
        what = f"{OFFSET} must be a whole number from -{FARTHEST} to {FARTHEST}, not "
        raise InputError(path, what + show(value, 40), where)
    return value


def rule(path: Path, key: str, value: Any, where: str) -> Rule:
    if not isinstance(value, str) or not 0 < len(value) <= LENGTH:
        what = f"a name must be a string of 1 to {LENGTH} characters, not {show(value, 40)}"
        raise InputError(path, what, where)
    meant = key.replace(LAYER, "0")
    if not (is_tap(meant) or is_product(meant)) or key.count(LAYER) > 1:
        what = f"{show(key, 60)} is no tap; `lockstep taps` lists them, and {LAYER} is any layer"
        raise InputError(path, what, where)
    if key.count(LAYER) != value.count(LAYER) or re.search(r"[{}]", value.replace(LAYER, "")):
        what = f"{LAYER} must be in the tap and in {show(value, 60)} once, or in neither"
        raise InputError(path, what, where)
    before, _, after = value.partition(LAYER)
    number = "(0|[1-9][0-9]{0,5})" if LAYER in value else ""
    return Rule(key, value, re.compile(re.escape(before) + number + re.escape(after)))


def to_json(found: dict[str, str]) -> str:
    """Return a map of single names as a file that `read_map` reads."""
    return json.dumps({tap: name for name, tap in found.items()}, indent=1)
