"""The text of a comparison: what it must say, and what no name in a dump can make it do."""

import re

import pytest

from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.naming.grouping import groups
from lockstep.parity.reports.terminal import LONGEST, report

HOSTILE = [
    "\x1b[2J\x1b[31mred",
    "\rPARITY",
    "x\nPARITY  all is well",
    "\n::error::pwned",
    "::add-mask::secret",
    "  ::set-output name=a::b",
    "\u3000::error::x",
    "##[error]pwned",
    "a##[command]b",
    "\u202egnp.evil",
    "\u2066x\u2069",
    "\x9b31m",
    "\x00",
    "\ud800",
    "a" * 100_000,
    "<script>alert(1)</script>",
    "|`$(rm -rf /)`|",
]


def tap(name, status="ok", **figures):
    return Tap(name=name, op=None, shape=(1, 2), status=status, **figures)


def result(*taps, **parts):
    return Result(left="left", right="right", taps=list(taps), **parts)


def everywhere(name: str) -> Result:
    """Put a name wherever a name can come from a file."""
    found = result(
        tap(name), tap(name, "differs", place=name, rms_rel=1.0), tap(name, "not judged")
    )
    found.left = found.right = name
    found.unmatched = found.notes = found.conventions = [name]
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_can_steer_a_terminal_or_a_ci_run(name):
    text = report(everywhere(name))
    lines = text.split("\n")
    assert all(line.isprintable() or "\u3000" in line for line in lines)
    assert not any(line.strip().startswith("::") or "##[" in line for line in lines)
    assert len(lines) == len(report(everywhere("harmless")).split("\n"))
    assert sum(line.startswith(("PARITY", "DIVERGED")) for line in lines) == 1
    text.encode()


def test_a_parity_is_told_with_its_count():
    text = report(result(tap("logits", rms_rel=1e-7, cosine=1.0), tap("expert", "not judged")))
    assert text.startswith("PARITY  right  against  left\n1 tap compared\n")
    assert "first wrong" not in text
    assert "1 is not judged, since it is no tap: expert" in text


def test_one_is_told_as_one():
    text = report(result(tap("logits", rms_rel=0.0), unmatched=["lm_head"]))
    assert "\n1 tap is on one side only, and not compared: lm_head" in text


def test_a_name_that_is_alone_of_its_kind_says_its_layer():
    """By hand: `model.layers.*` of one tap would hide where it is."""
    names = ["model.layers.1.a", "model.layers.0.b", "step.1/model.layers.0.b", "logits"]
    assert groups(names) == [("model.layers.1.a", 1), ("model.layers.*.b", 2), ("logits", 1)]


def test_a_divergence_is_told_with_place_and_neighbours():
    bad = {"own_error": 0.5, "noise": 1e-7, "ratio": 5e6, "gain": 1.5, "cosine": 0.9}
    text = report(
        result(
            tap("model.layers.0.mlp.up_proj", own_error=1e-8, noise=1e-7, ratio=0.1),
            tap("model.layers.0", "diverged", place="first at [0, 1]: 3, but should be 2", **bad),
            tap("model.layers.1", "inherited", own_error=1e-8, noise=1e-7, ratio=0.1),
            tap("logits", "diverged", **bad),
        )
    )
    found = dict(re.findall(r"^(\w[\w, ]*?)  +(.*)$", text, re.MULTILINE))
    assert text.startswith("DIVERGED")
    assert found["first wrong"] == "model.layers.0"
    assert found["where"] == "first at [0, 1]: 3, but should be 2"
    assert found["own error"] == "5.0e-01 of its size"
    assert found["gain, cosine"] == "1.5, 0.9"
    assert found["last right"] == "model.layers.0.mlp.up_proj"
    assert found["also wrong"] == "logits"
    assert re.search(r"^model\.layers\.1 .* inherited$", text, re.MULTILINE)


def test_a_layer_is_one_line_with_its_worst_tap():
    layer = [tap(f"model.layers.0.{n}", rms_rel=x) for n, x in (("a", 1e-7), ("b", 2e-7))]
    nan = tap("step.1/model.layers.0.c", "differs", rms_rel=float("nan"))
    text = report(result(*layer, nan, tap("step.1/model.layers.0.d", "differs", rms_rel=9.0)))
    assert re.search(r"^model\.layers\.0 +2\.0e-07 +- +b +ok$", text, re.MULTILINE)
    assert re.search(r"^step\.1/model\.layers\.0 +nan +- +c +differs$", text, re.MULTILINE)


def test_a_long_report_shows_what_is_wrong():
    taps = [tap(f"module.{i}", rms_rel=0.0) for i in range(5000)]
    taps.insert(3000, tap("culprit", "differs", rms_rel=1.0))
    text = report(result(*taps))
    assert text.count("\n") < LONGEST
    assert "culprit" in text.split("also")[-1]
    assert "5000 lines more" in text


def test_taps_of_one_side_are_told_once_for_all_layers():
    names = [f"{step}model.layers.{n}.mlp.act_fn" for step in ("", "step.1/") for n in range(9)]
    text = report(result(tap("logits", rms_rel=0.0), unmatched=names))
    alone = "18 taps are on one side only, and not compared: model.layers.*.mlp.act_fn (18)\n"
    assert alone in f"{text}\n"
