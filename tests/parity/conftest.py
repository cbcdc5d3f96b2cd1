"""Small checkpoints, and the command line as a function that returns what it printed."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from lockstep.parity.cli import main
from lockstep.reference.tokenizer import chat_template
from tests.processes import made_once

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests/witnesses/models"
DEMO = ROOT / "parity/demo/checkpoint"


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session", autouse=True)
def _templates_are_rendered_once() -> Iterator[None]:
    """Keep what chat templates give: each rendering is a process, which other tests look at."""
    render, kept = chat_template.render_template, {}

    def rendered(template, variables, **more):
        key = template, repr(variables)
        if key not in kept:
            kept[key] = render(template, variables, **more)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template, "render_template", rendered)
        yield


@pytest.fixture
def lockstep(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Return the command line: arguments in, exit code and both outputs out."""

    def run(*arguments: object) -> Said:
        code = main([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def kept_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """What `lockstep demo --out kept --json demo.json` leaves in a folder, and says: it is long."""
    folder = made_once(tmp_path_factory, "demo", run_demo)
    return folder, Said(*json.loads((folder / "said.json").read_text()))


def run_demo(folder: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = main(["demo", "--out", "kept", "--json", "demo.json"])
    (folder / "said.json").write_text(json.dumps([code, out.getvalue(), err.getvalue()]))


@pytest.fixture
def refuses(lockstep: Callable[..., Said]) -> Callable[..., str]:
    """Return the check that every bad input must pass: exit 2, one clean line, no output."""

    def check(core: str, *arguments: object) -> str:
        __tracebackhide__ = True
        said = lockstep(*arguments)
        assert (said.code, said.out) == (2, ""), said
        line = said.err.removesuffix("\n")
        assert line.startswith("lockstep: error: ") and line.isprintable(), said.err
        assert len(line.encode()) <= 440 and "Traceback" not in line
        assert core in line, line
        return line

    return check


@pytest.fixture(scope="session")
def plain() -> Path:
    """A model of 2 layers in shards, stored in float32, with a head of its own."""
    return MODELS / "untied_float32"


@pytest.fixture(scope="session")
def tied() -> Path:
    return MODELS / "tied_bfloat16"


@pytest.fixture(scope="session")
def packed() -> Path:
    """A model whose modules are packed in every way there is."""
    return MODELS / "affine_mixed"


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo's checkpoint, which has a tokenizer."""
    return DEMO


@pytest.fixture
def copy(tied: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may spoil."""
    return Path(shutil.copytree(tied, tmp_path / "model"))
