"""What mlx-lm loses without a word is found and named from a capture of mlx-lm itself.

By witness, live: transformers has the true logits, which the reference must have and mlx-lm must
not. The class to be named follows from what mlx-lm's reader leaves out.
"""

import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from lockstep import parity, reference
from tests.peers.engines.mlx_lm_defects import DEFECTS, VERSION, Made, captured, off_by, row
from tests.witnesses import build
from tests.witnesses.judge import BAR

PAGE = Path(__file__).parents[2] / "docs/parity/mlx-lm.md"
LEAST = 2e-4  # of what is lost, tanh for erf in GPT-2 does the least
ROUNDING = r"\de-0[5-9]"  # what is left by rounding, which is another processor's too
MENDED = f"mlx-lm {VERSION} is not what runs here: look again at what it mends, and say so"


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


def test_the_version_is_the_one_that_the_page_speaks_of():
    assert version("mlx-lm") == VERSION, MENDED
    assert f"mlx-lm {VERSION}" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DEFECTS)
def test_it_is_lost_and_named(name, tmp_path):
    defect = DEFECTS[name]
    made = defect.make(tmp_path / "model")
    dump, model = captured(made), reference.load(made.folder)
    assert off_by(made, np.asarray(model.forward(made.tokens))) <= BAR
    off = off_by(made, dump.read("logits"))
    assert off > LEAST, f"mlx-lm {version('mlx-lm')} has mended it: {defect.lost}"
    found = parity.explain(model, dump)
    named = {(bug.id, bug.variant) for bug in found.faults}
    assert (found.verdict, named, found.unexplained) == ("faults", {*defect.named}, [])
    assert all(tuple(bug.layers) == defect.layers for bug in found.faults)
    assert not any(bug.also_fits for bug in found.faults)
    # With what was named put right, nothing but rounding is left of the error.
    assert found.counterfactual[-1]["logits_error"] < BAR / 5
    assert row(name, found, off) in PAGE.read_text(encoding="utf-8")


def test_within_the_window_there_is_nothing_to_see(tmp_path):
    made = DEFECTS["mistral-window"].make(tmp_path / "model")
    short = Made(made.folder, made.truth, made.tokens[:, : made.truth.config.sliding_window])
    dump = captured(short)
    assert off_by(short, dump.read("logits")) <= BAR
    assert parity.explain(reference.load(made.folder), dump).verdict == "clean"


def test_the_example_of_the_page_is_true(tmp_path, monkeypatch, capsys):
    page = PAGE.read_text(encoding="utf-8")
    example = re.search(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert example is not None
    (tmp_path / "tests").symlink_to(PAGE.parents[2] / "tests")
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    printed = capsys.readouterr().out
    assert re.sub(ROUNDING, "#", printed) == re.sub(ROUNDING, "#", example[2])
