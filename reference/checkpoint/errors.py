"""One error for every input that is refused, and the one way to print what came from a file."""

from __future__ import annotations

from os import PathLike

LINE_BYTES = 400
PATH_BYTES = 130
WHERE_BYTES = 90
ITEMS = 12


class InputError(ValueError):
    """An input was refused. `str(error)` is one printable line `<path>: <what> (<where>)`."""

    def __init__(self, path: str | PathLike[str], what: str, where: str | None = None) -> None:
        self.path, self.what, self.where = str(path), what, where
        head = clip_start(escape(self.path), PATH_BYTES)
        tail = "" if where is None else f" ({clip_end(escape(where), WHERE_BYTES)})"
        room = LINE_BYTES - len(head.encode()) - len(": ") - len(tail.encode())
        super().__init__(f"{head}: {clip_end(escape(what), room)}{tail}")


def show(value: object, limit: int = 80) -> str:
    """Return a value from a file as short printable text: strings quoted, all else as JSON has it.

    Control, bidirectional and surrogate characters come out as escapes; the result never holds a
    line break and is at most `limit` characters of the value plus the quotes and dots.
    """
    if isinstance(value, str):
        # Cut before escaping: a hostile megabyte costs nothing.
        cut = value[: limit + 1]
        return f"'{clip_end(escape(cut), limit)}'"
    return clip_end(escape(_plain(value, limit)), limit)


def show_names(names: list[str], most: int = 3) -> str:
    """Return the first few names and how many more there are: `'a', 'b', 'c' and 4 more`."""
    text = ", ".join(show(name, 48) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def escape(text: str) -> str:
    """Return text in which everything that could steer a terminal is a backslash escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def clip_end(text: str, most_bytes: int) -> str:
    """Cut printable text to a number of UTF-8 bytes, dots at the end."""
    data = text.encode()
    return (
        text if len(data) <= most_bytes else data[: most_bytes - 3].decode(errors="ignore") + "..."
    )


def clip_start(text: str, most_bytes: int) -> str:
    """Cut printable text to a number of UTF-8 bytes, dots at the start: a path's end says most."""
    data = text.encode()
    return (
        text if len(data) <= most_bytes else "..." + data[3 - most_bytes :].decode(errors="ignore")
    )


def _escape_char(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _plain(value: object, limit: int) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        more = ", ..." if len(value) > ITEMS else ""
        return "[" + ", ".join(show(item, limit) for item in value[:ITEMS]) + more + "]"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
