"""`lockstep explain MODEL DUMP`: exit codes, options, the JSON's contract. By law and by hand."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.parity.explaining.ports import WITNESSES, model_of, port, prompt
from tests.parity.graph.witnesses import run as loaded

NAME = "models/untied_float32"
MODEL = WITNESSES / NAME
TOKENS = prompt(model_of(NAME))[0].tolist()
SAID = ",".join(map(str, TOKENS))
BUG = "norm-plus-one-missing"
FAULT = {
    "id", "variant", "taps", "layers", "confidence", "residual_before", "residual_after", "noise",
    "runner_up", "also_fits", "fix", "votes", "wrong", "right",
}  # fmt: skip


def saved(path, taps, tokens=TOKENS, **about):
    """Write a trace."""
    about = {"format": "lockstep-trace", "version": "1", "tokens": json.dumps(tokens)} | about
    save_file({k: np.ascontiguousarray(v) for k, v in taps.items()}, path, about)
    return path


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("clean") / "port.safetensors", port(NAME))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("wrong") / "port.safetensors", port(NAME, [BUG]))


def test_a_right_port_exits_with_0(lockstep, clean):
    said = lockstep("explain", MODEL, clean)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"CLEAN  {clean}  as a port of  {MODEL}\nno bug named; 29 taps")


def test_a_bug_exits_with_1_and_says_what_to_fix(lockstep, wrong):
    said = lockstep("explain", MODEL, wrong)
    assert (said.code, said.err) == (1, "")
    headline, count, *rest = said.out.splitlines()
    assert headline.startswith("FAULTS  ") and count.startswith("1 bug named; 29 taps compared")
    assert rest[1] == "fix:" and rest[2].startswith(f"  1. {BUG} (layers 0-1): ")


def test_a_dump_of_another_checkpoint_is_doubted_in_a_line(lockstep, tmp_path):
    taps = port(NAME)
    some = {"model.embed_tokens": taps["model.embed_tokens"]}
    some |= {name: taps[name][..., :-1] for name in ("lm_head", "logits")}
    said = lockstep("explain", MODEL, saved(tmp_path / "port.safetensors", some))
    assert said.err.startswith("lockstep: warning: 2 of 3 taps of the dump are none of ")
    assert said.err.count("\n") == 1 and said.code == 1
    (tmp_path / "map").write_text("logits: logits\n")
    mapped = lockstep("explain", MODEL, tmp_path / "port.safetensors", "--map", tmp_path / "map")
    assert (mapped.err, mapped.code) == ("", 1)


def test_what_has_no_name_exits_with_1(lockstep, tmp_path):
    taps = port(NAME)
    taps["logits"] = taps["lm_head"] = taps["logits"] + np.float32(0.1)
    said = lockstep("explain", MODEL, saved(tmp_path / "port.safetensors", taps))
    assert said.code == 1 and said.out.startswith("UNKNOWN  ")
    assert "offset: the same vector is added to every token" in said.out


def test_the_json_has_exactly_its_contract(lockstep, wrong):
    said = lockstep("explain", MODEL, wrong, "--json", "-")
    found = json.loads(said.out)
    assert (said.code, said.err) == (1, "")
    assert found.keys() == {
        "verdict", "faults", "unexplained", "conventions", "config", "weights", "coverage",
        "counterfactual", "dtype", "seconds", "taps", "command", "model", "dump",
    }  # fmt: skip
    assert found["verdict"] == "faults" and found["coverage"].keys() == {
        "compared", "unmatched", "not_judged",
    }  # fmt: skip
    (fault,) = found["faults"]
    assert fault.keys() == FAULT
    assert fault["runner_up"] is None or fault["runner_up"].keys() == {"id", "residual"}
    assert all(row.keys() == {"fixed", "logits_error"} for row in found["counterfactual"])
    assert (fault["id"], fault["layers"], found["dtype"]) == (BUG, [0, 1], "float32")


def test_the_json_of_what_is_unknown_is_json_whatever_was_dumped(lockstep, tmp_path):
    taps = port(NAME)
    taps["model.norm"][0, 3, 5] = np.nan
    path = saved(tmp_path / "port.safetensors", taps)
    said = lockstep("explain", MODEL, path, "--json", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert said.code == 1 and said.out.startswith("UNKNOWN  ")
    first = found["unexplained"][0]
    assert first.keys() == {"tap", "own_error", "noise", "shape"}
    assert (first["tap"], first["own_error"]) == ("model.norm", "nan")


def test_tokens_are_given_where_the_dump_does_not_say_them(lockstep, refuses, tmp_path):
    path = tmp_path / "port.npz"
    np.savez(path, **port(NAME))
    refuses("does not say which token ids it was made from: pass --tokens", "explain", MODEL, path)
    assert lockstep("explain", MODEL, path, "--tokens", SAID).code == 0
    line = refuses("token id 99999", "explain", MODEL, path, "--tokens", f"99999,{SAID[3:]}")
    assert "0..119" in line


def test_the_dtype_can_be_said(lockstep, tmp_path):
    first, value = next(iter(port(NAME, dtype="bfloat16").items()))
    path = saved(tmp_path / "port.safetensors", {first: value})
    shown = json.loads(lockstep("explain", MODEL, path, "--json", "-").out)
    assert (shown["dtype"], shown["verdict"]) == ("bfloat16", "clean")
    said = json.loads(lockstep("explain", MODEL, path, "--dtype", "float32", "--json", "-").out)
    assert said["dtype"] == "float32" and said["verdict"] != "clean"


def test_names_of_their_own_are_mapped(lockstep, refuses, tmp_path):
    taps = port(NAME, level="logits")
    both = {"their/final": taps["logits"], "their/other": taps["logits"]}  # which are logits?
    path = saved(tmp_path / "port.safetensors", both)
    refuses("nothing was compared", "explain", MODEL, path)
    names = tmp_path / "map.yaml"
    names.write_text("logits: their/final\n")
    assert lockstep("explain", MODEL, path, "--map", names).code == 0


def test_the_config_is_compared_first(lockstep, clean, tmp_path):
    config = json.loads((MODEL / "config.json").read_text())
    config["rms_norm_eps"] = 1e-5
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = lockstep("explain", MODEL, clean, "--config", tmp_path / "config.json")
    assert said.code == 1 and "before any activation:\n  config: rms_norm_eps" in said.out
    same = lockstep("explain", MODEL, clean, "--config", MODEL / "config.json")
    assert same.code == 0 and "before any activation" not in same.out


def test_the_weights_are_compared_first(lockstep, clean, tmp_path):
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(MODEL)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
    np.savez(tmp_path / "right.npz", **tensors)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    np.savez(tmp_path / "wrong.npz", **tensors)
    assert lockstep("explain", MODEL, clean, "--weights", tmp_path / "right.npz").code == 0
    said = lockstep("explain", MODEL, clean, "--weights", tmp_path / "wrong.npz", "--json", "-")
    found = json.loads(said.out)
    assert (said.code, found["verdict"], found["faults"]) == (1, "faults", [])
    assert len(found["weights"]) == 1 and "model.norm.weight" in json.dumps(found["weights"])


def test_an_adapter_is_part_of_the_model(lockstep, tmp_path):
    """By law: our own run with the adapter is right with it, and wrong without it."""
    one, taps = loaded("adapters/peft_tables"), {}
    one.model.forward(one.tokens, trace=taps.__setitem__)
    some = {"model.embed_tokens": taps["model.embed_tokens"]}
    path = saved(tmp_path / "port.safetensors", some, one.tokens[0].tolist())
    base, adapter = one.model.checkpoint.path, WITNESSES / "adapters/peft_tables"
    assert lockstep("explain", base, path, "--adapter", adapter).code == 0
    assert lockstep("explain", base, path).code == 1


def test_bad_files_are_refused_in_one_line(refuses, clean, tmp_path):
    refuses("missing", "explain", MODEL, tmp_path / "missing.safetensors")
    refuses("nowhere", "explain", tmp_path / "nowhere", clean)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 40)
    refuses("bad.safetensors", "explain", MODEL, tmp_path / "bad.safetensors")
    np.savez(tmp_path / "none.npz", x=np.zeros(3))
    refuses("nothing was compared", "explain", MODEL, tmp_path / "none.npz", "--tokens", SAID)
    many_axes = saved(tmp_path / "axes.safetensors", {"logits": np.ones([1] * 64, np.float32)})
    refuses("nothing was compared", "explain", MODEL, many_axes)


def test_its_help_has_an_example(lockstep):
    code, shown, _ = lockstep("explain", "--help")
    assert code == 0
    assert "lockstep explain MODEL port.safetensors --tokens 9707,11,1879" in shown
    for option in (
        "--tokens",
        "--prompt",
        "--chat",
        "--dtype",
        "--map",
        "--config",
        "--weights",
        "--adapter",
        "--json",
    ):
        assert option in shown
