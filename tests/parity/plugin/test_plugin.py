"""The plugin in a pytest of its own: what passes, what fails, and how that reads. By hand."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampled import sampled

long = sampled(2)  # of the proofs below that take seconds each

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "tests/witnesses/models/untied_float32"
ARGUMENTS = runpy.run_path(str(Path(__file__).with_name("installed.py")))["ARGUMENTS"]
pytest_plugins = ["pytester"]

PORT = f"""
import numpy as np
import pytest

MODEL, TOKENS = {str(MODEL)!r}, [3, 14, 15, 9, 26]
"""
BROKEN = (
    PORT
    + """
@pytest.fixture
def port(lockstep):
    truth = lockstep.reference(MODEL, TOKENS)
    port = {name: truth.read(name) for name in truth.shapes}
    port["model.layers.1.mlp.act_fn"] = 1.01 * port["model.layers.1.mlp.act_fn"]
    return port
"""
)
GOLDEN = """
import numpy as np
def test_run(lockstep):
    x = np.random.default_rng(0).standard_normal((1, 7, 32)).astype(np.float32)
    y = x * x
    CHANGE
    lockstep.assert_golden("run", {"model.embed_tokens": x, "model.layers.0.mlp": y})
"""
REFRESH = "--lockstep-refresh"


@pytest.fixture
def run(pytester, monkeypatch):
    """Return a pytest over one test file; what a user of Lockstep would do is all it has."""
    monkeypatch.delenv("CI", raising=False)

    def start(source, *arguments):
        pytester.path.joinpath("test_port.py").write_text(source)
        return pytester.runpytest_inprocess(*ARGUMENTS, "-p", "no:cacheprovider", *arguments)

    return start


def said(result) -> dict[str, str]:
    """Return the rows of a failure text."""
    rows = (re.match(r"E +([a-z, ]+?)  +(\S.*)", line) for line in result.outlines)
    return {row[1]: row[2] for row in rows if row}


def test_a_right_port_passes(run):
    right = PORT + (
        "def test_port(lockstep):\n"
        "    truth = lockstep.reference(MODEL, TOKENS)\n"
        "    port = {name: truth.read(name) for name in truth.shapes}\n"
        "    lockstep.assert_clean(MODEL, port, tokens=TOKENS)\n"
        "    lockstep.assert_parity(truth, port, model=MODEL)\n"
        "    lockstep.assert_parity(truth, port)\n"
    )
    run(right).assert_outcomes(passed=1)


CALLS = {
    "assert_clean(MODEL, port, tokens=TOKENS)": "(up to 8 allowed)",
    "assert_parity(lockstep.reference(MODEL, TOKENS), port, model=MODEL)": "(up to 8 allowed)",
    "assert_parity(lockstep.reference(MODEL, TOKENS), port)": "(up to 7.6e-06 allowed in float32)",
}


@long
@pytest.mark.parametrize("call", CALLS)
def test_a_failure_says_what_where_and_by_how_much(run, call):
    result = run(BROKEN + f"def test_port(port, lockstep):\n    lockstep.{call}\n")
    result.assert_outcomes(failed=1)
    rows, text = said(result), result.stdout.str()
    assert "model.layers.1.mlp.act_fn" in text
    assert rows["layer"] == "1"
    assert rows["last right"] == "model.layers.1.mlp.up_proj"
    assert re.fullmatch(r"\[0, 0, 0\]: \S+, but should be \S+", rows["first bad"])
    assert CALLS[call] in text
    if "model=" in call or "clean" in call:
        assert rows["op"] == "silu"
        assert rows["own error"].startswith("1.0e-02 of its size, where rounding makes ")


@long
@pytest.mark.parametrize("call", CALLS)
def test_a_failure_shows_no_line_of_ours(run, call):
    result = run(BROKEN + f"def test_port(port, lockstep):\n    lockstep.{call}\n", "--tb=long")
    text = result.stdout.str()
    assert "assertions.py" not in text and "raise AssertionError" not in text
    # The path of the checkpoint is as long as where the project lies.
    ours = [line.replace(str(MODEL), "MODEL") for line in result.outlines if line.startswith("E ")]
    assert len(ours) <= 20 and max(map(len, ours)) <= 110


@long
def test_many_wrong_taps_are_listed_in_part(run):
    source = (
        PORT
        + "def test_port(lockstep):\n"
        + "    truth = lockstep.reference(MODEL, TOKENS)\n"
        + "    port = {name: truth.read(name) for name in truth.shapes}\n"
        + "    port = {name: np.where(x == x.max(), np.nan, x) for name, x in port.items()}\n"
        + "    lockstep.assert_clean(MODEL, port, tokens=TOKENS)\n"
    )
    result = run(source)
    result.assert_outcomes(failed=1)
    ours = [line for line in result.outlines if line.startswith("E ")]
    assert any(re.match(r"E +and \d+ more", line) for line in ours)
    assert len(ours) < 25


def test_nothing_passes_by_comparing_nothing(run):
    source = (
        PORT
        + "def test_clean(lockstep):\n"
        + "    lockstep.assert_clean(MODEL, {'mine': np.ones((1, 5, 3))}, tokens=TOKENS)\n"
        + "def test_parity(lockstep):\n"
        + "    lockstep.assert_parity({'mine': np.ones(5)}, {'other': np.ones(5)})\n"
    )
    run(source).assert_outcomes(failed=2)


def test_names_in_a_dump_steer_nothing(run):
    hostile = "model.layers.0\\n::error::pwned\\x1b[2J"
    source = (
        "import numpy as np\n"
        "def test_port(lockstep):\n"
        f"    names = '{hostile}', 'logits'\n"
        "    left = {name: np.full((1, 2, 3), 1.0) for name in names}\n"
        "    right = {name: np.full((1, 2, 3), 2.0) for name in names}\n"
        "    lockstep.assert_parity(left, right)\n"
    )
    result = run(source, "-rN")
    result.assert_outcomes(failed=1)
    ours = [line for line in result.outlines if line.startswith("E ")]
    assert "\\x0a::error::pwned\\x1b[2J" in " ".join(ours)
    assert all(line.isprintable() for line in ours)


def test_an_input_that_is_refused_is_one_line(run):
    source = "def test_port(lockstep):\n    lockstep.assert_clean('nowhere', {'logits': 1.0})\n"
    result = run(source)
    result.assert_outcomes(failed=1)
    (line,) = [line for line in result.outlines if line.startswith("E ")]
    assert "nowhere: " in line
    assert "checkpoint.py" not in result.stdout.str()


@pytest.mark.parametrize("given", ["None", "{}", "{'x': object()}", "[1]", "{'x': 1j}"])
def test_what_is_no_dump_is_refused(run, given):
    result = run(f"def test_port(lockstep):\n    lockstep.assert_golden('x', {given})\n")
    result.assert_outcomes(failed=1)
    assert len([line for line in result.outlines if line.startswith("E ")]) == 1
    assert "InputError" in result.stdout.str()


def test_a_missing_golden_is_a_failure_and_nothing_is_written(run, pytester):
    result = run(GOLDEN.replace("CHANGE", ""))
    result.assert_outcomes(failed=1)
    assert "there is no such golden yet" in result.stdout.str()
    assert not pytester.path.joinpath("goldens").exists()


def test_a_golden_is_refreshed_on_purpose_and_says_so(run, pytester):
    result = run(GOLDEN.replace("CHANGE", ""), REFRESH)
    result.assert_outcomes(passed=1)
    path = pytester.path / "goldens/test_port.run.safetensors"
    line = f"refreshed: goldens/test_port.run.safetensors, {path.stat().st_size} bytes: new, 2 *"
    result.stdout.fnmatch_lines(["*golden traces*", line])
    run(GOLDEN.replace("CHANGE", "")).assert_outcomes(passed=1)

    first = path.read_bytes()
    result = run(GOLDEN.replace("CHANGE", ""), REFRESH)
    result.stdout.fnmatch_lines(["left as it was: *, no change in 2 tensors"])
    assert path.read_bytes() == first

    changed = GOLDEN.replace("CHANGE", "y[0, 4] *= 1.5")
    result = run(changed)
    result.assert_outcomes(failed=1)
    assert path.read_bytes() == first
    result = run(changed, REFRESH)
    result.stdout.fnmatch_lines(["refreshed: * 1 of 2 tensors changed, model.layers.0.mlp first"])
    run(changed).assert_outcomes(passed=1)


def test_a_run_that_left_its_golden_says_where(run):
    run(GOLDEN.replace("CHANGE", ""), REFRESH)
    result = run(GOLDEN.replace("CHANGE", "y[0, 4] *= 1.5"))
    rows = said(result)
    assert rows["first wrong"] == "model.layers.0.mlp"
    assert rows["where"] == "in [0, 4, :]"
    assert rows["last right"] == "model.embed_tokens"
    assert rows["difference"].endswith("of its size (up to 7.6e-06 allowed in float32)")
    assert rows["golden"] == "goldens/test_port.run.safetensors"
    assert "pytest --lockstep-refresh" in result.stdout.str()


@pytest.mark.parametrize(("value", "refused"), [("true", True), ("1", True), ("false", False)])
def test_no_golden_is_refreshed_in_ci(run, pytester, monkeypatch, value, refused):
    monkeypatch.setenv("CI", value)
    pytester.path.joinpath("test_port.py").write_text(GOLDEN.replace("CHANGE", ""))
    result = pytester.runpytest_inprocess(*ARGUMENTS, REFRESH)
    assert result.ret == (4 if refused else 0)
    assert pytester.path.joinpath("goldens").exists() != refused
    assert ("refused where CI is set" in result.stderr.str()) == refused


def test_a_project_that_asks_for_nothing_is_left_alone(pytester):
    """By law: no option of its own changes, nothing heavy is imported, nothing is printed."""
    source = (
        "import sys\n"
        "def test_it():\n"
        "    heavy = {'numpy', 'mlx', 'torch', 'ml_dtypes', 'lockstep.reference', 'tokenizers'}\n"
        "    assert 'lockstep.parity.plugin' in sys.modules\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    pytester.path.joinpath("test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", *ARGUMENTS, "-p", "no:hypothesispytest", "-q", "-W",
               "error"]  # fmt: skip
    run = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert re.fullmatch(r"\.\s+\[100%\]\n1 passed in \S+\n", run.stdout)
    assert run.stderr == ""
