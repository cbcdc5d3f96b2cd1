"""The commands that look at few tokens, few taps, and sketches, as they are typed. By hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.sketches.writing import SketchFile

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
        (("--positions", "last"), "error: --positions: 'last', but should be last:8, first:8"),
        (("--positions", "8"), "error: --positions: 8, but the prompt has the positions 0 to 7"),
        (("--taps", "nothing"), "no tap is named 'nothing'"),
        (("--positions", "0", "--tensor-parallel", "2"), "--positions: does not go with"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(lockstep, options, said):
    found = lockstep("check", MODEL, *IDS, "--backend", "cpu", *options)
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1


def test_a_position_that_the_prompt_has_not_is_refused_by_the_name_of_the_option(
    lockstep, tmp_path
):
    said = lockstep("trace", MODEL, *IDS, "--positions", "8", "-o", tmp_path / "t")
    wanted = "lockstep: error: --positions: 8, but the prompt has the positions 0 to 7\n"
    assert (said.code, said.out, said.err) == (2, "", wanted)


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


@pytest.fixture(scope="module")
def one_sketch(tmp_path_factory):
    path = tmp_path_factory.mktemp("sketch") / "s"
    with SketchFile(path, dtype="float32", tokens=[1, 2]) as file:
        file("logits", np.eye(2, 8, dtype=np.float32)[None])
    return path


@pytest.mark.parametrize(
    "target, said",
    [
        ("SKETCH", "is also read by this command"),
        ("MODEL/config.json", "lies in the folder that is read"),
        ("precious.txt", "exists and is no list of suspects; it is left as it is"),
        ("both.json", "is to hold the suspects and something else"),
        ("nowhere/x", "its folder does not exist"),
        (".", "is a folder"),
        ("-", "is no name of a file"),
        ("", "is no name of a file"),
    ],
)
def test_suspects_replace_nothing_but_suspects(
    lockstep, tmp_path, monkeypatch, one_sketch, target, said
):
    """By hand: what is there is there afterwards, to the byte."""
    model = Path(MODEL).resolve()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious.txt").write_text("precious")
    before = {path: path.read_bytes() for path in (one_sketch, Path("precious.txt"))}
    target = target.replace("SKETCH", str(one_sketch)).replace("MODEL", str(model))
    command = ("diff", one_sketch, one_sketch, "--model", model, "--json", "both.json")
    found = lockstep(*command, "--suspects", target)
    assert found.code == 2 and said in found.err and found.err.count("\n") == 1
    assert before == {path: path.read_bytes() for path in before}
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_suspects_replace_suspects(lockstep, tmp_path, one_sketch):
    names = tmp_path / "names.txt"
    for _ in range(2):
        assert lockstep("diff", one_sketch, one_sketch, "--suspects", names).code == 0
    assert names.read_text().startswith("# write these whole on both sides: ")


def test_what_cannot_be_sketched_is_named(lockstep, tmp_path):
    tensors = {"logits": np.ones((1, 2, 8), np.float32), "freqs": np.ones((2, 4), np.complex64)}
    save_file(tensors, tmp_path / "x.safetensors")
    command = ("dump", "sketch", tmp_path / "x.safetensors", "-o", tmp_path / "s")
    assert "1 tensor left out, which no trace can hold: 'freqs' of complex64" in (
        lockstep(*command).out
    )
    assert json.loads(lockstep(*command, "--json", "-").out)["left_out"] == [
        {"name": "freqs", "dtype": "complex64"}
    ]


def test_a_glob_of_caches_is_enough_for_check_to_compare_them(lockstep):
    command = ("check", MODEL, "--tokens", "3,14", "--backend", "cpu", "--taps", "*.cached_keys")
    said = lockstep(*command, "--json", "-")
    assert said.code == 0
    assert {tap["name"].rpartition(".")[2] for tap in json.loads(said.out)["taps"]} == {
        "cached_keys"
    }


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


def test_a_pickle_is_told_what_to_write_instead(refuses, tmp_path):
    (tmp_path / "port.pt").write_bytes(b"PK\x03\x04" + bytes(60))
    np.savez(tmp_path / "left.npz", logits=np.ones((1, 2, 3), np.float32))
    refuses("a pickle is never read", "diff", tmp_path / "left.npz", tmp_path / "port.pt")
