"""What every result can do: become a report. The command line makes them from its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.parity.reports.document import Document


class Reported:
    """A result with a `to_json`, whose document every report is made from."""

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def to_html(self, path: str | Path) -> None:
        """Write the page that shows all: one file, which loads nothing."""
        from lockstep.parity.cli.output import write
        from lockstep.parity.reports.html import html

        write(Path(path), html(self._document()))

    def to_markdown(self, path: str | Path | None = None) -> str:
        """Return the text for a pull request, and write it if there is a path."""
        from lockstep.parity.cli.output import write
        from lockstep.parity.reports.markdown import markdown

        text = markdown(self._document())
        if path is not None:
            write(Path(path), text)
        return text

    def to_junit(self, path: str | Path) -> None:
        """Write a JUnit file: a test for each tap and each bug."""
        from lockstep.parity.cli.output import write
        from lockstep.parity.reports.junit import junit

        write(Path(path), junit(self._document()))

    def _document(self) -> Document:
        from lockstep.parity.reports.document import parsed

        return parsed(json.loads(json.dumps(self.to_json())), "result")
