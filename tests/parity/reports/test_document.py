"""RESULT.json is not trusted: what is no result is refused in one line. By hand."""

import json

import pytest

from lockstep.parity.reports import document
from lockstep.parity.reports.document import LIMITS

TAP = {"name": "logits", "shape": [1, 2], "status": "ok"}
DIFF = {"verdict": "parity", "first_divergence": None, "compared": 1, "unmatched": [],
        "conventions": [], "taps": [TAP]}  # fmt: skip
EXPLAIN = {"verdict": "clean", "faults": [], "coverage": {"compared": 1}}


def spoilt(**changes):
    return json.dumps(DIFF | changes)


def spoilt_tap(**changes):
    return spoilt(taps=[TAP | changes])


HISTOGRAM = {"zero": 0, "first": 0, "counts": [1], "not_finite": 0}


@pytest.mark.parametrize(
    ("text", "core"),
    [
        ("", "file is empty"),
        ("{", "is not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("{}", "is no result of lockstep check, diff or explain: it has no verdict"),
        ('{"verdict": "parity"}', "it has no taps"),
        ('{"verdict": "clean", "faults": []}', "it has no coverage"),
        (spoilt(verdict="fine"), "verdict should be parity or diverged, not 'fine'"),
        (spoilt(verdict=["parity"]), "verdict should be parity or diverged"),
        (spoilt(command="trace"), "its command is trace"),
        (spoilt(command={}), "its command is {}"),
        (spoilt(command="explain"), "it has no faults"),
        (spoilt(taps={}), "taps should be a list of objects"),
        (spoilt(taps=[1]), "taps should be a list of objects"),
        (spoilt(compared=-1), "compared should be a whole number, 0 or more, not -1"),
        (spoilt(compared=True), "compared should be a whole number"),
        (spoilt(unmatched=[1]), "unmatched should be a list of texts"),
        (spoilt_tap(name=3), "taps[0].name should be a text, not 3"),
        (spoilt_tap(status="fine"), "taps[0].status should be one of ok"),
        (spoilt_tap(max_abs="many"), "taps[0].max_abs should be a number, not 'many'"),
        (spoilt_tap(ratio=[]), "taps[0].ratio should be a number"),
        (spoilt_tap(shape=["x"]), "taps[0].shape should be a list of whole numbers"),
        (spoilt_tap(histogram=[]), "taps[0].histogram should be an object"),
        (spoilt_tap(histogram=HISTOGRAM | {"first": 10**9}), "histogram.first should be"),
        (spoilt_tap(histogram=HISTOGRAM | {"counts": [-1]}), "histogram.counts should be"),
        (spoilt_tap(histogram=HISTOGRAM | {"counts": [1] * 99}), "histogram.counts should be"),
        (json.dumps(EXPLAIN | {"coverage": []}), "coverage should be an object"),
        (json.dumps(EXPLAIN | {"faults": ["x"]}), "faults should be a list of objects"),
        (json.dumps(EXPLAIN | {"config": [3]}), "config should be a list of findings"),
        (json.dumps(EXPLAIN | {"config": [None]}), "config should be a list of findings"),
        ('{"verdict": NaN}', "NaN is not a JSON number"),
        ('{"verdict": "parity", "verdict": "diverged"}', "duplicate key 'verdict'"),
        ("[" * 20 + "]" * 20, "is nested deeper than 12 levels"),
    ],
)
def test_what_is_no_result_is_refused(refuses, tmp_path, text, core):
    path = tmp_path / "result.json"
    path.write_text(text)
    refuses(core, "report", path, "--html", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_result_that_is_too_large_is_refused(refuses, tmp_path):
    path = tmp_path / "result.json"
    with path.open("wb") as file:
        file.truncate(LIMITS.size + 1)
    refuses(f"the limit of {LIMITS.size}", "report", path)


def test_a_result_that_is_not_there_is_refused(refuses, tmp_path):
    refuses("result.json", "report", tmp_path / "result.json")
    refuses("", "report", tmp_path)


def test_a_report_is_not_written_over_its_result_nor_another(refuses, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(DIFF))
    refuses("is the result that is read", "report", path, "--html", path)
    same = tmp_path / "report"
    refuses("is written already", "report", path, "--html", same, "--junit", same)
    refuses("is no name of a file", "report", path, "--html", tmp_path)
    refuses("is no name of a file", "report", path, "--html", "")
    assert json.loads(path.read_text()) == DIFF and not same.exists()


@pytest.mark.parametrize(("values", "command"), [(DIFF, "diff"), (EXPLAIN, "explain")])
def test_what_earlier_versions_wrote_is_read(values, command):
    found = document.parsed(values, "result.json")
    assert (found.command, found.good, found.compared) == (command, True, 1)


def test_unknown_keys_are_let_pass():
    assert document.parsed(DIFF | {"later": {"x": 1}}, "result.json").good
