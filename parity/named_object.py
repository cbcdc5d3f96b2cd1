"""MODULE or MODULE:NAME on a command line: something of the user's own code."""

import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, clip_end, escape

FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?", re.ASCII)
MOST = 160  # characters of what an import says


def looks_named(text: str) -> bool:
    """Tell whether a text can be MODULE:NAME, or MODULE alone."""
    return FORM.fullmatch(text) is not None


def named_object(text: str) -> Any:
    """Import MODULE and return NAME of it, or the module. The working folder is looked at first.

    Raises: InputError if there is none, or if importing it fails.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return pkgutil.resolve_name(text)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {clip_end(escape(str(error)[: MOST + 1]), MOST)}"
        raise InputError(text, f"cannot be imported: {said}") from None
