"""What each report says of results whose answer is known. By hand."""

import json
import re
from xml.etree import ElementTree

import pytest

from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named, Unexplained
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.grouping import layers_said
from lockstep.parity.reports import document, heat_map, summary
from lockstep.parity.reports.fields import PROSE
from lockstep.parity.reports.github import escaped
from lockstep.parity.reports.html import html
from lockstep.parity.reports.markdown import code, said

BAD = "model.layers.1.mlp.up_proj"


def tap(name, status="ok", **figures):
    known = {"rms_rel": 1e-7, "own_error": 1e-7, "noise": 2e-7, "ratio": 0.5}
    return Tap(name=name, op="linear", shape=(1, 2, 3), status=status, **known | figures)


@pytest.fixture
def diverged():
    taps = [tap("model.layers.0.mlp.up_proj"), tap(BAD, "diverged", ratio=4e4, own_error=8e-3,
            place="first at [0, 1, 2]: 3, but should be 4"), tap("logits", "inherited"),
            tap("extra", "not judged")]  # fmt: skip
    return Result("left.npz", "right.npz", taps, ["lm_head"], ["right: moved"], ["a note"])


@pytest.fixture
def diagnosed():
    taps = [f"model.layers.{n}.self_attn.q_rope" for n in (0, 1, 3)]
    fault = Named("rope-half-split", None, taps, [0, 1, 3], 0.9, 0.5, 1e-7, 2e-7,
                  {"id": "rope-theta", "residual": 0.4}, [], "rotate halves",
                  wrong="pairs", right="halves")  # fmt: skip
    return Diagnosis([fault], dump="port.safetensors", model="model", dtype="float32", compared=9,
                     counterfactual=[{"fixed": [], "logits_error": 0.5}])  # fmt: skip


def through_json(result):
    return document.parsed(json.loads(json.dumps(result.to_json())), "result.json")


def test_a_result_comes_back_from_its_json(diverged, diagnosed):
    found = through_json(diverged)
    assert (found.command, found.verdict, found.left, found.right) == (
        "diff", "diverged", "left.npz", "right.npz")  # fmt: skip
    assert list(found.taps) == diverged.taps
    assert (found.compared, found.unmatched, found.not_judged) == (3, ("lm_head",), ("extra",))
    assert found.conventions == ("a note", "right: moved")
    found = through_json(diagnosed)
    assert (found.command, found.left, found.right) == ("explain", "model", "port.safetensors")
    assert list(found.faults) == diagnosed.faults
    assert found.counterfactual == (((), 0.5),)


def test_what_to_fix_is_the_tap_that_is_wrong_in_itself(diverged):
    [fix] = summary.fixes(through_json(diverged))
    assert (fix.title, fix.where, fix.taps) == (BAD, "layer 1", (BAD,))
    assert ("where", "first at [0, 1, 2]: 3, but should be 4") in fix.why
    assert ("own error", "8.0e-03; noise 2.0e-07, ratio 4e+04") in fix.why


def test_what_to_fix_is_the_bug(diagnosed):
    [fix] = summary.fixes(through_json(diagnosed))
    assert (fix.title, fix.where, fix.text, fix.sure) == (
        "rope-half-split", "layers 0-1, 3", "rotate halves", 0.9)  # fmt: skip


def test_markdown(diverged, diagnosed):
    text = diverged.to_markdown()
    assert text.startswith("### ❌ Lockstep diff: Diverged\n\n`right.npz` against `left.npz`: ")
    assert f"| `{BAD}` | 1.0e-07 | 8.0e-03 | 2.0e-07 | 4e+04 | `linear` |" in text
    text = diagnosed.to_markdown()
    assert "1. `rope-half-split` (layers 0-1, 3, confidence 0.90): rotate halves" in text
    assert "| nothing | 5.0e-01 |" in text


def test_junit(diverged, diagnosed, tmp_path):
    diverged.to_junit(tmp_path / "diff.xml")
    suite = ElementTree.parse(tmp_path / "diff.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == [*"4110"]
    [failed] = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert (failed.get("name"), failed.get("classname")) == (BAD, "lockstep.layers.1")
    assert "ratio: 4e+04" in failed.find("failure").text
    diagnosed.to_junit(tmp_path / "explain.xml")
    [case] = ElementTree.parse(tmp_path / "explain.xml").iter("testcase")
    assert case.find("failure").get("message") == "rope-half-split (layers 0-1, 3): rotate halves"


def test_the_page(diverged, tmp_path):
    diverged.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    bare = re.sub(r"<wbr>|</?code>", "", page)
    assert "Diverged" in page and BAD in bare and "first at [0, 1, 2]" in page
    label = f"{BAD}: own error 8.0e-03, 4e+04 times its noise; diverged"
    assert f'<td class="d3 wrong"><a href="#tap-1" aria-label="{label}">4e4</a></td>' in page
    assert not re.search(r"https?://", page.replace("http-equiv", "")), "an address"


def test_github(lockstep, diverged, tmp_path):
    result = tmp_path / "result.json"
    result.write_text(json.dumps(diverged.to_json()))
    first, second = lockstep("report", result, "--github").out.splitlines()
    assert first.startswith("::error title=Lockstep diff%3A Diverged::right.npz against left.npz")
    assert second.startswith(f"::error title={BAD} (layer 1)::")
    assert "%0Amade by: linear%0A" in second
    assert escaped("50%, a:b\n", {"%": "%25", "\n": "%0A"}) == "50%25, a:b%0A"


def test_without_options_the_markdown_is_printed(lockstep, diverged, tmp_path):
    result = tmp_path / "result.json"
    result.write_text(json.dumps(diverged.to_json()))
    assert lockstep("report", result).out == diverged.to_markdown()
    made = json.loads(lockstep("report", result, "--html", tmp_path / "a.html", "--json", "-").out)
    assert made == {"command": "diff", "verdict": "diverged",
                    "written": {"html": str(tmp_path / "a.html")}}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a.b", "`a.b`"), ("a`b|c", "`a\\x60b\\x7cc`"), ("", "`··`"), (" a ", "`· a ·`")],
)
def test_code_spans(given, shown):
    assert code(given) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a * b_c", "a \\* b_c"), ("_x_", "\\_x\\_"), ("by @me", "`by @me`"), ("<b>", "\\<b\\>"),
     ("see http://x", "`see http://x`"), ("#12", "`#12`"),
     ("of GH-12", "`of GH-12`"), (":tada:", "`:tada:`")],
)  # fmt: skip
def test_sentences(given, shown):
    assert said(given) == shown


def test_where_most_was_not_compared_a_report_says_of_how_much():
    few = Diagnosis([], dump="port", dtype="float32", compared=2, unmatched=["a", "b", "c"])
    assert summary.sentence(through_json(few)).startswith("2 of the dump's 5 tensors compared; ")


def test_what_has_no_name_is_told_with_its_layer_and_without_empty_rows():
    odd = Unexplained("model.layers.1.mlp.up_proj", own_error=0.5, noise=1e-7, shape="")
    found = through_json(Diagnosis([], dump="port", model="model", dtype="float32", compared=9,
                                   unexplained=[odd]))  # fmt: skip
    [fix] = summary.fixes(found)
    assert fix.title == "unexplained: model.layers.1.mlp.up_proj"
    assert [label for label, _ in fix.why] == ["own error"]
    assert "model.layers.*" not in html(found)


def test_every_heading_of_a_table_says_what_it_heads(diagnosed):
    """By law: a screen reader reads a cell with its headings, and a table with its caption."""
    mixed = Result("a", "b", [tap(BAD), tap("model.layers.1.residual")])
    for result in (mixed, diagnosed):
        page = html(through_json(result))
        heads = re.findall(r"<th\b[^>]*>", page)
        assert heads and all('scope="' in head for head in heads)
        assert page.count("<table") == page.count("<caption")


def test_layers_in_runs():
    assert layers_said([]) == ""
    assert layers_said([7]) == "layer 7"
    assert layers_said([0, 1, 2, 5, 7, 8]) == "layers 0-2, 5, 7-8"


@pytest.mark.parametrize(
    ("figures", "shown"),
    [({"rms_rel": 0.0}, ("a0", "=")), ({"rms_rel": 3e-7}, ("a2", "−7")),
     ({"rms_rel": 1e-30}, ("a1", "−30")), ({"rms_rel": 2.0}, ("a9", "0")),
     ({"rms_rel": float("nan")}, ("a9", "nan")), ({"rms_rel": None}, ("a0", "="))],
)  # fmt: skip
def test_shades_of_accumulated_error(figures, shown):
    assert heat_map.accumulated(tap("a", **figures))[:2] == shown


@pytest.mark.parametrize(
    ("status", "ratio", "shown"),
    [("ok", 0.5, ("o0", "0.5")), ("ok", 3.0, ("o1", "3.0")), ("diverged", 3.0, ("d1", "3.0")),
     ("diverged", 42.0, ("d2", "42")), ("diverged", 2.5e7, ("d4", "2e7")),
     ("diverged", float("nan"), ("d4", "nan")), ("diverged", float("inf"), ("d4", "inf")),
     ("diverged", None, ("d4", "✕")), ("not judged", None, ("u", "·"))],
)  # fmt: skip
def test_shades_of_own_error(status, ratio, shown):
    assert heat_map.own(tap("a", status, ratio=ratio))[:2] == shown


def test_the_map_has_layers_as_rows_and_modules_as_columns():
    names = ["embed", "model.layers.0.a", "model.layers.0", "model.layers.1.a", "model.layers.1.b",
             "model.layers.1", "step.1/model.layers.0.a", "step.1/logits"]  # fmt: skip
    inside, outside = heat_map.grids([tap(name) for name in names])
    assert inside.rows == ("0", "1", "step 1, 0")
    assert inside.columns == ("a", "b", "(output)")
    assert inside.taps[("1", "b")] == 4 and ("0", "b") not in inside.taps
    assert (outside.rows, outside.columns) == (("prefill", "step 1"), ("embed", "logits"))


def test_a_large_result_makes_a_bounded_page():
    taps = [tap(f"name{n}") for n in range(9000)] + [tap("last", "diverged", ratio=9.0)]
    result = Result("a", "b", taps)
    page = html(through_json(result))
    assert page.count("<details>") == 4000 and "5,001" not in page
    assert "Without an entry: 5001 taps more, none worse than these." in page
    assert 'id="tap-9000"' in page, "what is wrong comes first"
    assert len(page) < 12_000_000 and PROSE < 2000
