"""The commands that look at few tokens, few taps, and sketches, as they are typed. By hand."""

import json

import pytest

from lockstep.parity.dumps.dump import open_dump

MODEL = "tests/witnesses/llama/mistral_window"
IDS = ("--tokens", "3,14,15,9,26,5,35,8")


def test_positions_and_taps_of_a_trace(lockstep, tmp_path):
    path = tmp_path / "t"
    said = lockstep(
        "trace", MODEL, *IDS, "--positions", "last:2,0", "--taps", "*.mlp.*", "-o", path
    )
    assert said.code == 0 and "3 positions of 8 tokens" in said.out
    dump = open_dump(path)
    assert dump.ids("positions") == [0, 6, 7]
    assert {shape[:2] for shape in dump.shapes.values()} == {(1, 3)}
    shown = lockstep("dump", "validate", path).out
    assert "positions  3: 0, 6, 7" in shown
    assert lockstep("diff", path, path).code == 0


def test_taps_are_read_from_a_file(lockstep, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("# of the last layer\nmodel.norm\n\nlogits\n")
    said = lockstep("trace", MODEL, *IDS, "--taps", f"@{names}", "-o", tmp_path / "t")
    assert said.code == 0 and [*open_dump(tmp_path / "t").shapes] == ["model.norm", "logits"]
    names.write_text("# nothing\n")
    assert "names no taps" in lockstep("check", MODEL, *IDS, "--taps", f"@{names}").err
    assert lockstep("check", MODEL, *IDS, "--taps", "@gone.txt").code == 2


def test_check_looks_at_what_is_asked_for(lockstep):
    command = ("check", MODEL, *IDS, "--backend", "cpu", "--positions", "last:2")
    said = lockstep(*command, "--taps", "logits,*.context", "--json", "-")
    found = json.loads(said.out)
    assert said.code == 0 and found["verdict"] == "parity"
    assert {tap["name"].rpartition(".")[2] for tap in found["taps"]} == {"logits", "context"}
    assert all(tap["own_error"] is not None for tap in found["taps"])
    assert found["conventions"] == [
        "of the prompt these are compared, and indices count them: 2 of 8 tokens: 6..7"
    ]


@pytest.mark.parametrize(
    "options, said",
    [
        (("--positions", "last"), "'last', but should be last:8, first:8, 100:108, 17"),
        (("--positions", "8"), "8, but the prompt has the positions 0 to 7"),
        (("--taps", "nothing"), "no tap is named 'nothing'"),
        (("--positions", "0", "--tensor-parallel", "2"), "--positions: does not go with"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(lockstep, options, said):
    found = lockstep("check", MODEL, *IDS, "--backend", "cpu", *options)
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1


def test_sketches_from_the_first_pass_to_the_second(lockstep, tmp_path):
    right, port, names = (tmp_path / name for name in ("right", "port", "suspects.txt"))
    said = lockstep("trace", MODEL, *IDS, "--sketch", "-o", right)
    assert said.code == 0 and "8 tokens, sketched, reference" in said.out
    lockstep(
        "trace", MODEL, *IDS, "--backend", "cpu", "--dtype", "float16", "-o", tmp_path / "half"
    )
    assert lockstep("dump", "sketch", tmp_path / "half", "-o", port).code == 0
    assert lockstep("trace", MODEL, *IDS, "--sketch", "-o", right).code == 0  # it may be replaced
    assert lockstep("diff", right, port, "--suspects", names).code == 0  # as float16 it is right
    assert names.read_text().count("\n") == 1


def test_a_whole_story(lockstep, tmp_path):
    """The wrong port is another checkpoint's weights."""
    right, port, names = (tmp_path / name for name in ("right", "port", "suspects.txt"))
    lockstep("trace", MODEL, *IDS, "--sketch", "-o", right)
    lockstep("trace", "tests/witnesses/llama/llama_dynamic", *IDS, "--sketch", "-o", port)
    report = tmp_path / "report.json"
    said = lockstep("diff", right, port, "--model", MODEL, "--suspects", names, "--json", report)
    assert said.code == 1 and said.out.endswith(f"  --taps '@{names}'\n")
    assert names.read_text().splitlines()[1:] == ["model.embed_tokens"]
    assert json.loads(report.read_text())["suspects"] == ["model.embed_tokens"]
    assert lockstep("report", report, "--html", tmp_path / "page.html").code == 0
    whole = ("trace", MODEL, *IDS, "--taps", f"@{names}", "-o", tmp_path / "whole")
    assert lockstep(*whole).code == 0


@pytest.mark.parametrize(
    "command, said",
    [
        (("dump", "sketch", "FILE"), "--out: is needed"),
        (("dump", "validate", "FILE", "-o", "x"), "--out: goes with `dump sketch`"),
        (("explain", MODEL, "SKETCH"), "holds sketches"),
        (("diff", "SKETCH", "SKETCH", "--model", MODEL, "--backend", "reference"), "--backend"),
        (("diff", "FILE", "FILE", "--suspects", "x"), "--suspects: is for sketched traces"),
    ],
)
def test_what_a_sketch_is_not_for(lockstep, tmp_path, command, said):
    lockstep("trace", MODEL, *IDS, "--taps", "logits", "-o", tmp_path / "f")
    lockstep("trace", MODEL, *IDS, "--taps", "logits", "--sketch", "-o", tmp_path / "s")
    names = {"FILE": tmp_path / "f", "SKETCH": tmp_path / "s"}
    found = lockstep(*(names.get(one, one) for one in command))
    assert found.code == 2 and said in found.err
