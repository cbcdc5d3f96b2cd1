"""Traces of transformers' own modules: what is in them, and what is never run or asked for.

By witness: the reference, which has some of the architectures as well.
"""

import json
import socket
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep import parity
from lockstep.parity.cli import main
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.naming.align import align
from lockstep.parity.naming.names import is_tap
from lockstep.parity.torch_modules.walk import Walk
from lockstep.reference.checkpoint.errors import InputError
from tests.peers.new_architectures.builds import TOKENS, Folders, loaded, make
from tests.witnesses import build

WITNESSES = Path(__file__).parents[1] / "witnesses"


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    "path",
    ["models/untied_float32", "llama/mistral_window", "llama/qwen2_yarn", "gpt2/original",
     "qwen3_moe/separate", "gemma4/dense", "gemma4/effective"],
)  # fmt: skip
def test_a_trace_of_modules_agrees_with_the_reference(path, tmp_path, capsys):
    """By witness: what both name alike has the same values."""
    tokens = ",".join(map(str, TOKENS))
    for name, backend in (("left", "reference"), ("right", "transformers")):
        code = main(["trace", str(WITNESSES / path), "--tokens", tokens, "--decode", "2",
                     "--backend", backend, "-o", str(tmp_path / name)])  # fmt: skip
        assert code == 0
    left, right = (open_dump(tmp_path / name) for name in ("left", "right"))
    assert (left.tokens, left.decoded) == (right.tokens, right.decoded)
    result = parity.diff(left, right)
    assert result.verdict == "parity"
    modules = [name for name in align(right).names if is_tap(name) and name not in left.shapes]
    assert modules == []  # whatever of transformers' modules is a tap is one of the reference
    assert result.compared >= 3 * 20


@pytest.mark.parametrize("path", ["llama/mistral_window", "qwen3_moe/separate", "gemma4/dense"])
def test_float64_is_float64_throughout(path, tmp_path, capsys):
    """By witness: the reference in float64. transformers by itself is at 1e-7: its norms, its
    frequencies and its softmax are in float32."""
    run = ["trace", str(WITNESSES / path), "--tokens", "3,1,4,1,5,9", "--dtype", "float64"]
    for name, backend in (("left", "reference"), ("right", "transformers")):
        assert main([*run, "--backend", backend, "-o", str(tmp_path / name)]) == 0
    result = parity.diff(tmp_path / "left", tmp_path / "right")
    assert result.verdict == "parity"
    assert max(tap.rms_rel or 0.0 for tap in result.taps) < 1e-14


def test_taps_choose_modules(folder, tmp_path, capsys):
    """By hand: an attention hands on what its last part gives, and is written in its place."""
    out = tmp_path / "trace"
    code = main(["trace", str(folder("Olmo2")), "--tokens", "3,1,4", "--backend", "transformers",
                 "--taps", "*.1.self_attn,logits", "-o", str(out)])  # fmt: skip
    assert code == 0
    assert list(open_dump(out).shapes) == ["model.layers.1.self_attn", "logits"]
    assert open_dump(out).shapes["logits"] == (1, 3, 96)
    every = main(["trace", str(folder("Olmo2")), "--tokens", "3,1,4", "--backend", "transformers",
                  "-o", str(out)])  # fmt: skip
    names = open_dump(out).shapes
    assert every == 0 and "model.layers.1.self_attn.o_proj" in names
    assert not {"model", "model.layers.1.self_attn", "model.layers.1.mlp"} & names.keys()


@pytest.mark.parametrize("path", ["llama/mistral_window", "qwen3_moe/separate"])
@pytest.mark.parametrize("more", [[], ["--tokens", "9,2"]])
def test_some_tokens_of_modules_are_those_of_the_whole(path, more, tmp_path, capsys):
    """By witness: the reference's trace of all tokens, cut to them."""
    run = ["trace", str(WITNESSES / path), "--tokens", "3,1,4,1,5,9", *more, "--decode", "1"]
    assert main([*run, "--backend", "reference", "-o", str(tmp_path / "left")]) == 0
    some = [*run, "--backend", "transformers", "--positions", "0,last:2"]
    assert main([*some, "-o", str(tmp_path / "right")]) == 0
    result = parity.diff(tmp_path / "left", tmp_path / "right")
    assert result.verdict == "parity" and result.compared >= 2 * 20
    shapes = {tap.name: tap.shape for tap in result.taps}
    assert shapes["logits"][:2] == (1 + len(more) // 2, 3)


def test_the_first_tokens_are_judged_by_the_modules_and_others_refused(tmp_path, capsys):
    """By hand."""
    path = str(WITNESSES / "llama/mistral_window")
    for name, at in (("first", "first:3"), ("last", "last:3")):
        code = main(["trace", path, "--tokens", "3,1,4,1,5,9", "--positions", at,
                     "--backend", "cpu", "-o", str(tmp_path / name)])  # fmt: skip
        assert code == 0
    result = parity.diff(tmp_path / "first", tmp_path / "first", model=path)
    judged = [tap for tap in result.taps if tap.status != "not judged"]
    assert result.verdict == "parity" and all(tap.own_error is not None for tap in judged)
    assert len(judged) >= 20
    with pytest.raises(InputError, match="torch modules compute whole prompts"):
        parity.diff(tmp_path / "last", tmp_path / "last", model=path)


def test_a_glob_that_names_a_mere_list_writes_nothing(folder, tmp_path, capsys):
    """By hand."""
    out = tmp_path / "trace"
    code = main(["trace", str(folder("Olmo2")), "--tokens", "3", "--backend", "transformers",
                 "--taps", "model.layers", "-o", str(out)])  # fmt: skip
    assert code == 2 and not out.exists()
    assert "names nothing that is handed out" in capsys.readouterr().err


def test_what_was_written_is_not_kept(folder, tmp_path):
    """By law: a model of more layers has no more of what it handed out in memory at once."""
    most = {}
    for layers in (3, 9):
        path = make("Olmo2", tmp_path / str(layers), num_hidden_layers=layers)
        alive: list[Any] = []
        counts = []

        def visit(name: str, made: torch.Tensor, alive: Any = alive, counts: Any = counts) -> None:
            alive.append(weakref.ref(made))
            counts.append(sum(one() is not None for one in alive))

        Walk(loaded(path, "float32"), visit).step(TOKENS, 0, more=False)
        most[layers] = max(counts)
        assert len(counts) > 13 * layers
    assert most[9] == most[3] < 12


def test_a_model_without_keys_and_values_hands_on_its_state(folder, tmp_path, capsys):
    """By law: a token that is fed back gives what it gives as the last of a longer prompt."""
    run = ["--backend", "transformers", "--taps", "logits"]
    model, short, long = str(folder("Mamba")), tmp_path / "short", tmp_path / "long"
    assert main(["trace", model, "--tokens", "3,1,4", *run, "--decode", "1", "-o", str(short)]) == 0
    steps = open_dump(short)
    fed = ",".join(map(str, [3, 1, 4, *steps.decoded]))
    assert main(["trace", model, "--tokens", fed, *run, "-o", str(long)]) == 0
    one, other = steps.read("step.1/logits")[0, 0], open_dump(long).read("logits")[0, 3]
    assert np.abs(one - other).max() < 1e-5 * np.abs(other).max()


def test_a_model_that_hands_on_nothing_has_no_steps(folder, tmp_path, capsys):
    """By hand: RecurrentGemma keeps its state to itself."""
    run = ["--tokens", "3,1,4", "--backend", "transformers", "-o", str(tmp_path / "out")]
    model = str(folder("RecurrentGemma"))
    assert main(["trace", model, *run, "--decode", "1"]) == 2
    assert "hands on no cache" in capsys.readouterr().err
    assert main(["trace", model, *run]) == 0


def test_nothing_asks_the_network(folder, tmp_path, capsys, monkeypatch):
    """By law: not even for a name."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"asks the network: {args}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    out = str(tmp_path / "out")
    trace = ["trace", str(folder("Olmoe")), "--tokens", "1,2,3", "--backend", "transformers"]
    assert main([*trace, "-o", out]) == 0
    assert main(["diff", out, out, "--model", str(folder("Olmoe"))]) == 0


def test_code_of_the_checkpoint_is_never_run(folder, tmp_path, capsys):
    """By hand: a model of its own code is refused, and its file is not imported."""
    said = json.loads((folder("Olmo2") / "config.json").read_text())
    said |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "weights")
    (tmp_path / "weights").write_bytes((folder("Olmo2") / "model.safetensors").read_bytes())
    code = main(["trace", str(tmp_path), "--tokens", "1,2", "--backend", "transformers",
                 "-o", str(tmp_path.parent / "out-of-code")])  # fmt: skip
    assert code == 2 and "transformers cannot load it" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_missing_weights_are_refused_and_not_drawn(folder, tmp_path, capsys):
    """By hand: transformers would fill them in at random."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder("Olmo2") / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder("Olmo2") / "config.json").read_bytes())
    code = main(["trace", str(tmp_path), "--tokens", "1,2", "--backend", "transformers",
                 "-o", str(tmp_path.parent / "out")])  # fmt: skip
    assert code == 2
    assert "lacks 1 tensor that the model needs" in capsys.readouterr().err
