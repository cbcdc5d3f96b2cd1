"""Follow a page as a new user would: write the files that it shows, type what it tells to type.

    python .ci/try_page.py docs/parity/ci.md FOLDER

In FOLDER lie `reference/`, `fast/` and `parity/` of the project's own, as porters have them. A file
is a block after `<!-- file: NAME -->`; a command is a line after `$ ` in a console block, and every
line shown under it must be printed, in that order; where none is, it must exit with 0. Figures may
differ in their digits.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DIGITS = re.compile(r"-?\d+\.\d+(e[+-]\d+)?|-?\d+e[+-]\d+")
OWN = ("reference", "fast", "parity")
# Read by every pytest that runs in the project: its own packages stay its own.
CONFTEST = f"""\
import importlib
from pathlib import Path

from lockstep.parity.plugin import given

for name in {OWN}:
    module = importlib.import_module(name)
    assert module.OWNER == "the project", name
    assert not Path(given.__file__).is_relative_to(Path(__file__).parent), given.__file__
"""


def prepare(folder: Path) -> None:
    """Make the project's own packages, whose names are those of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('OWNER = "the project"\n')
    (folder / "conftest.py").write_text(CONFTEST)


def steps(page: str) -> list[tuple[str, str]]:
    """Return files, as (name, text), and commands, as ("", console block), in order."""
    found = [(match.start(), (match[1], match[2])) for match in FILE.finditer(page)]
    found += [(match.start(), ("", match[1])) for match in CONSOLE.finditer(page)]
    return [step for _, step in sorted(found)]


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return each command of a console block with the lines that are shown under it."""
    typed = [part.split("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(line, [one for one in shown if one.strip() not in ("", "...")])
            for line, *shown in typed]  # fmt: skip


def run(line: str, folder: Path, before: int) -> tuple[str, int]:
    """Type one command; `$?` is the exit code of the one before."""
    script = f"(exit {before})\n{line}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1"},
    )  # fmt: skip
    return done.stdout, done.returncode


def missing(shown: list[str], printed: str) -> str | None:
    """Return the first line that is shown and not printed, in that order."""
    lines = iter(masked(printed).split("\n"))
    return next((line for line in shown if masked(line) not in lines), None)


def masked(text: str) -> str:
    """Hide digits, and how wide a column is for them."""
    lines = (DIGITS.sub("#", line).rstrip() for line in text.split("\n"))
    return "\n".join(re.sub(" +", " ", line) for line in lines)


def follow(page: str, folder: Path) -> str | None:
    """Return what did not go as the page says, None if all did."""
    prepare(folder)
    code, count = 0, 0
    for name, text in steps(page):
        if name:
            (folder / name).write_text(text)
        for line, shown in commands(text) if not name else []:
            printed, code = run(line, folder, code)
            count += 1
            gone = "nothing, with exit code 0" if not shown and code else missing(shown, printed)
            if gone is not None:
                return f"$ {line}\nshould print: {gone}\nbut prints:\n{printed}"
    print(f"{count} commands, each as the page says")
    return None if count else "the page shows no command"


if __name__ == "__main__":
    sys.exit(follow(Path(sys.argv[1]).read_text(encoding="utf-8"), Path(sys.argv[2])))
