"""HTML that is put together so that text can only ever be text."""

from __future__ import annotations

import re
from html import escape as html_escape

FIGURE = re.compile(r"[0-9][0-9.]*e[-+][0-9]+")


class Markup(str):
    """A string that is HTML already. All other strings are escaped where they are put in."""

    __slots__ = ()


def text(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(html_escape(str(value), quote=True))


def join(*parts: object) -> Markup:
    return Markup("".join(map(text, parts)))


def tag(name: str, *parts: object, **attributes: object) -> Markup:
    """Return an element. Attributes that are None are left out; `class_` is `class`, `_` is `-`."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>{join(*parts)}</{name}>")


def mono(value: str) -> Markup:
    """Return a name in fixed width, which may be broken after dots and underscores."""
    broken = text(value).replace(".", ".<wbr>").replace("_", "_<wbr>")
    return tag("code", Markup(broken))


def prose(value: str) -> Markup:
    """Return a sentence whose figures are not broken in two: 3.5e-08."""
    return Markup(FIGURE.sub(lambda found: f'<span class="fig">{found[0]}</span>', text(value)))
