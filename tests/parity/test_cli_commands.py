"""Every command as one would use it: what it prints, its JSON and its exit code. By hand."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.parity.dumps.dump import open_dump
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from tests.sampled import sampled

long = sampled(1, "test_the_demo_ends_well")  # of the proofs below that take seconds each

COMPARISON = ["verdict", "first_divergence", "compared", "unmatched", "conventions", "taps",
              "command", "left", "right"]  # fmt: skip
TAP = ["name", "shape", "max_abs", "rms_rel", "cosine", "gain", "own_error", "inherited_error",
       "noise", "ratio", "status", "op", "place", "histogram"]  # fmt: skip
IDS = "3,1,4,1,5"


@pytest.fixture
def document(lockstep):
    """Return a command's JSON from standard output, which must hold nothing else."""

    def run(*arguments, code=0):
        said = lockstep(*arguments, "--json", "-")
        assert (said.code, said.err) == (code, ""), said
        return json.loads(said.out)

    return run


@pytest.mark.parametrize("name", ["plain", "tied", "packed", "demo"])
def test_inspect_tells_what_a_checkpoint_is(lockstep, document, request, name):
    folder = request.getfixturevalue(name)
    said = lockstep("inspect", folder)
    assert (said.code, said.err) == (0, "")
    found = document("inspect", folder)
    assert found["architecture"] == "qwen3"
    assert f"{found['parameters']:,} in {len(found['tensors'])} tensors" in said.out
    assert all(name in said.out for name in found["formats"])
    assert "model.norm.weight" not in said.out
    assert "model.norm.weight" in lockstep("inspect", folder, "--tensors").out


def test_tokenize_shows_ids_and_pieces(lockstep, document, demo):
    found = document("tokenize", demo, "--prompt", "What is 2+2?")
    assert list(found) == ["text", "tokens", "pieces"]
    said = lockstep("tokenize", demo, "--prompt", "What is 2+2?")
    assert said.out.endswith(f"\n{len(found['tokens'])} tokens\n")
    assert f"{found['tokens'][0]}  'What'" in said.out
    chat = document("tokenize", demo, "--prompt", "What is 2+2?", "--chat")
    assert set(found["tokens"]) < set(chat["tokens"])
    assert "What is 2+2?" in chat["text"] != found["text"]
    assert lockstep("tokenize", demo, "--prompt", "").out == "0 tokens\n"


def test_taps_lists_every_tap(lockstep, document, plain):
    said, found = lockstep("taps", plain), document("taps", plain)
    lines = said.out.splitlines()
    assert len(lines) == len(found) + 3
    assert lines[0].split() == ["tap", "shape", "operation"]
    assert lines[1].split() == ["model.embed_tokens", "B,", "L,", "48", "embedding"]
    assert found[0] == {"name": "model.embed_tokens", "shape": ["B", "L", 48], "op": "embedding"}
    assert lines[-1] == f"{len(found)} taps"


@sampled(1, "cpu")
@pytest.mark.parametrize("backend", ["reference", "mlx", "cpu", "fast"])
def test_trace_writes_a_trace_that_diff_takes(lockstep, document, tmp_path, plain, backend):
    for name, other in (("left", "reference"), ("right", backend)):
        made = document("trace", plain, "--tokens", IDS, "--backend", other, "--decode", "1",
                        "-o", tmp_path / name)  # fmt: skip
        assert made["tokens"] == [3, 1, 4, 1, 5] and len(made["decoded"]) == 1
        assert (
            made["taps"] == len(load_file(tmp_path / name)) == len(open_dump(made["file"]).shapes)
        )
    for model in ((), ("--model", plain)):
        said = lockstep("diff", tmp_path / "left", tmp_path / "right", *model)
        assert said.code == 0 and said.err == ""
        assert said.out.startswith(f"PARITY  {tmp_path / 'right'}  against  {tmp_path / 'left'}\n")
        assert ("no --model, so no oracle" in said.out) == (not model)


def test_trace_replaces_a_trace_and_nothing_else(lockstep, refuses, tmp_path, plain):
    run = ("trace", plain, "--tokens", IDS, "--taps", "logits", "-o")
    said = lockstep(*run, tmp_path / "t")
    assert said.out == f"1 tap of 5 tokens, reference in float32 -> {tmp_path / 't'}\n"
    assert lockstep(*run, tmp_path / "t").code == 0
    (tmp_path / "mine.txt").write_text("precious")
    save_file({"logits": np.ones(3)}, tmp_path / "weights.safetensors")
    for name in ("mine.txt", "weights.safetensors"):
        before = (tmp_path / name).read_bytes()
        refuses("exists and is no trace; it is left as it is", *run, tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    refuses("no tap is named '*.mpl'", *run[:4], "--taps", "logits,*.mpl", "-o", tmp_path / "new")
    refuses("its operations are fused", *run[:4], "--taps", "*.probs", "--backend", "cpu",
            "-o", tmp_path / "new")  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.txt",
        "t",
        "weights.safetensors",
    ]


@sampled(2, "packed-fast")
@pytest.mark.parametrize("backend", ["reference", "mlx", "cpu", "fast"])
@pytest.mark.parametrize("name", ["plain", "packed"])
def test_check_says_parity(document, lockstep, request, backend, name):
    run = ("check", request.getfixturevalue(name), "--tokens", IDS, "--backend", backend,
           "--decode", "2")  # fmt: skip
    found = document(*run)
    assert list(found) == COMPARISON
    assert all(list(tap) == TAP for tap in found["taps"])
    assert (found["verdict"], found["first_divergence"]) == ("parity", None)
    assert found["compared"] == len(found["taps"]) > 90
    assert {tap["status"] for tap in found["taps"]} == {"ok"}
    assert found["taps"][-1]["name"] == "step.2/logits"
    hidden = 0 if backend == "reference" else 3 * 3 * 2
    assert len(found["unmatched"]) == hidden
    assert lockstep(*run).out.startswith("PARITY  ")


def test_one_weight_that_is_off_is_found_by_two_traces(lockstep, document, tmp_path, copy, tied):
    """By hand: a perturbed copy plays the broken port, diff --model plays the judge."""
    weight = "model.layers.1.self_attn.k_proj.weight"
    path = copy / "model.safetensors"
    tensors = load_file(path)
    tensors[weight][3, 5] += 2
    save_file(tensors, path, {"format": "pt"})
    for name, folder in (("left", tied), ("right", copy)):
        document("trace", folder, "--tokens", IDS, "--backend", "cpu", "-o", tmp_path / name)
    run = ("diff", tmp_path / "left", tmp_path / "right", "--model", tied)
    found = document(*run, code=1)
    assert list(found) == COMPARISON and list(found["taps"][0]) == TAP
    assert found["verdict"] == "diverged"
    assert found["first_divergence"] == weight.removesuffix(".weight")
    wrong = [tap["name"] for tap in found["taps"] if tap["status"] == "diverged"]
    assert wrong == [weight.removesuffix(".weight")]
    said = lockstep(*run)
    assert said.code == 1
    assert "first wrong   model.layers.1.self_attn.k_proj   made by linear" in said.out

    alone = document(*run[:3], code=1)
    assert alone["first_divergence"] == weight.removesuffix(".weight")
    assert all(tap["own_error"] is tap["noise"] is tap["ratio"] is None for tap in alone["taps"])
    assert any("no oracle" in line for line in alone["conventions"])


def test_check_in_python_finds_a_weight_that_is_off(tied):
    from lockstep import fast, parity, reference

    model, port = reference.load(tied), fast.load(tied, backend="mlx")
    name = "model.layers.0.mlp.up_proj.weight"
    port.weights[name] = port.weights[name].at[2, 3].add(1.0)
    result = parity.check(model, port, [[3, 1, 4, 1, 5]])
    assert (result.verdict, result.first_divergence.name) == (
        "diverged",
        "model.layers.0.mlp.down_proj",
    ) or (result.first_divergence.name == name.removesuffix(".weight"))


def test_nan_in_a_comparison_is_json_all_the_same(document, tmp_path):
    about = {"format": "lockstep-trace", "version": "1", "tokens": "[1]"}
    good = np.ones((1, 1, 4), np.float32)
    save_file({"logits": good}, tmp_path / "left", about)
    save_file({"logits": good * np.nan}, tmp_path / "right", about)
    found = document("diff", tmp_path / "left", tmp_path / "right", code=1)
    assert found["taps"][0]["max_abs"] == "nan"


def test_generate_writes_text(lockstep, document, demo):
    run = ("generate", demo, "--prompt", "What is 2+2?", "--chat")
    for backend in ("reference", "mlx", "cpu", "fast"):
        found = document(*run, "--backend", backend)
        keys = ["tokens", "text", "prompt_tokens", "ended_by", "decoder", "timings"]
        assert list(found) == keys and found["timings"]["tokenize_s"] > 0
        assert found["text"] == "2 + 2 equals 4."
    said = lockstep(*run)
    assert said.code == 0 and said.err == ""
    first, last = said.out.splitlines()
    assert first == "2 + 2 equals 4." and last.startswith(f"[{len(found['tokens'])} tokens, ")


def test_generate_ends_where_it_is_told(document, lockstep, refuses, demo, plain):
    run = ("generate", demo, "--prompt", "What is 2+2?", "--chat")
    found = document(*run, "--stop", "nothing", "--stop", "equ", "--prefill-chunk", 4)
    assert (found["text"], found["ended_by"]) == ("2 + 2 ", "stop string")
    assert lockstep(*run, "--stop", "equ").out.startswith("2 + 2 \n[5 tokens, ")
    last = document(*run, "--max-tokens", "3")["tokens"][-1]
    assert document(*run, "--stop-id", f"703,{last}")["ended_by"] == "stop id"
    refuses("--stop-id: token id 704, but should be 0..703", *run, "--stop-id", "1,704")
    refuses("an empty string, but should have a character", *run, "--stop", "")
    refuses("--stop: needs a tokenizer", "generate", plain, "--tokens", "1", "--stop", "a")
    refuses("'0' is not a whole number from 1 on", *run, "--prefill-chunk", "0")


@long
def test_generate_with_a_draft_writes_what_it_writes_without(document, lockstep, refuses, demo):
    run = ("generate", demo, "--prompt", "What is 2+2? What is 2+2?", "--chat")
    for more in ((), ("--prefill-chunk", 5), ("--stop", "equ")):
        plain = document(*run, *more)
        for draft in (demo, "lookup"):
            found = document(*run, *more, "--decoder", "speculative", "--draft", draft)
            assert (found["tokens"], found["text"]) == (plain["tokens"], plain["text"])
            counts = found["decoder"]
            assert counts["name"] == "speculative" and counts["draft_tokens"] == 4
            assert counts["forwards"] < 1 + len(plain["tokens"])
            assert counts["acceptance"] == counts["accepted"] / counts["drafted"]
    said = lockstep(*run, "--decoder", "speculative", "--draft", demo, "--draft-tokens", 2).out
    assert re.search(r", \d+ of \d+ drafted tokens kept, \d\.\d\d tokens a forward pass\]$", said)


def test_generate_refuses_a_draft_that_cannot_be_one(refuses, demo, plain):
    run = ("generate", demo, "--tokens", "1,2", "--max-tokens", "1")
    sped = (*run, "--decoder", "speculative")
    refuses("--decoder speculative: needs --draft MODEL, or --draft lookup", *sped)
    refuses("--draft: goes with --decoder speculative", *run, "--draft", demo)
    refuses("--ngram: goes with --draft lookup", *sped, "--draft", demo, "--ngram", "2")
    refuses("other tokens than the model's", *sped, "--draft", demo.parent / "gemma4")
    refuses("a vocabulary of", *sped, "--draft", plain)
    refuses("no such", *sped, "--draft", demo / "nowhere")
    rotating = ("--cache", "rotating", "--cache-size", "9")
    refuses("drops what is needed again", *sped, "--draft", "lookup", *rotating)
    rounded = ("--backend", "cpu", "--activations", "int8")
    refuses("activations in int8 do not go with it", *sped, "--draft", "lookup", *rounded)


def test_generate_samples_from_a_seed_or_a_file(document, lockstep, refuses, demo, tmp_path):
    from itertools import islice

    from lockstep.parity.generating.uniforms import seeded

    run = ("generate", demo, "--prompt", "What is 2+2?", "--temperature", "1.5", "--ignore-eos",
           "--max-tokens", "8")  # fmt: skip
    texts = {document(*run, "--seed", seed)["text"] for seed in range(3)}
    assert len(texts) == 3
    (tmp_path / "u").write_text(" ".join(map(repr, islice(seeded(0), 8))))
    assert document(*run, "--uniforms", tmp_path / "u") | {"timings": 0} == document(*run) | {
        "timings": 0
    }
    (tmp_path / "u").write_text("0.5 0.5 0.5")
    said = lockstep(*run, "--uniforms", tmp_path / "u")
    assert said.code == 2
    assert "holds 3 uniforms, but more tokens were asked for" in said.err
    refuses("holds 3 uniforms", *run, "--uniforms", tmp_path / "u", "--json", "-")
    refuses("no such file", *run, "--uniforms", tmp_path / "missing")


def test_generate_heeds_every_option_of_the_sampler(document, refuses, demo):
    """By hand: what is banned is not written, what is pushed is; every backend as the other."""
    run = ("generate", demo, "--tokens", "1,2", "--ignore-eos", "--max-tokens", "6")
    plain = document(*run)["tokens"]
    assert plain[0] not in document(*run, "--logit-bias", f"{plain[0]}:-inf")["tokens"]
    assert document(*run, "--logit-bias", "77:1000")["tokens"] == [77] * 6
    pushed = (*run, "--logit-bias", "77:20", "--frequency-penalty", "50")
    assert document(*pushed)["tokens"].count(77) == 1
    window = document(*pushed, "--penalty-window", "1")["tokens"]
    assert window[0::2] == [77] * 3 and 77 not in window[1::2]
    hot = (*run, "--temperature", "1.2", "--typical-p", "0.9", "--repetition-penalty", "1.2",
           "--presence-penalty", "0.1", "--semantics", "llama.cpp")  # fmt: skip
    texts = [document(*hot, "--backend", one)["tokens"] for one in ("reference", "mlx", "cpu")]
    assert texts[0] == texts[1] == texts[2] != document(*hot[:-2])["tokens"]
    refuses("token id 704, but should be 0..703", *run, "--logit-bias", "704:1")
    cut = ("--temperature", "1", "--top-k", "704", "--semantics", "mlx-lm")
    refuses("top_k=704, but mlx-lm takes at most 703 here", *run, *cut)


@long
def test_generate_keeps_keys_and_values_as_it_is_told(document, refuses, demo):
    """By law: what loses nothing writes one text. The room is that of prompt and new tokens."""
    run = ("generate", demo, "--tokens", "1,2", "--ignore-eos", "--max-tokens", "9", "--backend")
    for backend in ("reference", "mlx", "cpu"):
        plain = document(*run, backend)["tokens"]
        for name in ("concatenating", "growing", "preallocated"):
            assert document(*run, backend, "--cache", name)["tokens"] == plain
        assert len(document(*run, backend, "--cache", "affine4")["tokens"]) == 9
    refuses("invalid choice: 'paged'", *run, "cpu", "--cache", "paged")
    one = ("generate", demo, "--tokens", "1", "--cache", "preallocated", "--max-tokens")
    assert document(*one, "0")["tokens"] == []
    assert len(document(*one, "1")["tokens"]) == 1


def test_generate_without_a_tokenizer_gives_ids(lockstep, document, plain):
    run = ("generate", plain, "--tokens", "1,2", "--max-tokens", "3")
    found = document(*run)
    assert found["text"] is None and found["prompt_tokens"] == 2
    assert lockstep(*run).out.startswith(",".join(map(str, found["tokens"])) + "\n[3 tokens, ")


def test_json_goes_to_a_file_beside_the_text(lockstep, tmp_path, plain):
    target = tmp_path / "out.json"
    target.write_text("old")
    said = lockstep("taps", plain, "--json", target)
    assert said.out.startswith("tap ")
    assert json.loads(target.read_text())[0]["name"] == "model.embed_tokens"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert lockstep("taps", plain, "--json", "/dev/null").code == 0


def test_an_unknown_key_of_the_config_can_be_let_pass(lockstep, refuses, copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"attention_sink": 4}))
    for run in (("inspect",), ("taps",), ("check", "--tokens", "1"), ("generate", "--tokens", "1")):
        line = refuses("attention_sink", run[0], copy, *run[1:])
        assert "--ignore-config attention_sink" in line or "ignore" in line
        said = lockstep(run[0], copy, *run[1:], "--ignore-config", "attention_sink")
        assert said.code == 0, said
        assert said.err.count("\n") <= 1


def test_a_null_key_is_one_warning_line(lockstep, copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"one\x1b": None, "two": False}))
    said = lockstep("check", copy, "--tokens", "1,2")
    assert said.code == 0 and said.out.startswith("PARITY")
    assert said.err.startswith("lockstep: warning: ") and said.err.count("\n") == 1
    assert said.err[:-1].isprintable()


@long
def test_the_demo_ends_well(lockstep, kept_demo):
    """By law: it tells what its page shows, keeps what it says, and its dump is explained again."""
    folder, said = kept_demo
    kept = folder / "kept"
    assert (said.code, said.err) == (0, "")
    assert json.loads((folder / "demo.json").read_text())["as_it_should"] is True
    page = (Path(__file__).parents[2] / "docs/parity/demo.md").read_text(encoding="utf-8")
    shown = page.split("```text\n")[1].split("```")[0].splitlines()
    printed = said.out.splitlines()
    assert len(shown) > 60
    assert [line for line in shown if line not in printed and "compared in" not in line] == []
    assert {path.name for path in kept.iterdir()} == {
        "model", "adapter", "result.json", "port.safetensors", "port.txt",
        "port-of-adapter.safetensors", "port-of-adapter.txt",
    }  # fmt: skip
    dump, adapter = kept / "port-of-adapter.safetensors", kept / "adapter"
    again = lockstep("explain", kept / "model", dump, "--adapter", adapter)
    assert again.code == 1 and "1. lora-scale-divided-again" in again.out


def test_the_demo_does_not_write_over_a_file(refuses, tmp_path):
    (tmp_path / "file").write_text("")
    refuses("is a file, but should be a folder", "demo", "--out", tmp_path / "file")
    refuses("is no name of a folder", "demo", "--out", "")
    (tmp_path / "port.safetensors").write_text("somebody's model")
    refuses("exists and is no trace", "demo", "--out", tmp_path)
    assert (tmp_path / "port.safetensors").read_text() == "somebody's model"
    theirs = tmp_path / "kept" / "model" / "config.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("somebody's model")
    refuses("exists and is not the demo's", "demo", "--out", tmp_path / "kept")
    assert theirs.read_text() == "somebody's model"


def test_every_checkpoint_is_described_without_a_warning(lockstep, demo):
    assert open_checkpoint(demo).warnings == []


def test_generate_says_that_the_context_is_full(lockstep, plain):
    context = open_checkpoint(plain).config.max_position_embeddings
    ids = ",".join(["1"] * (context - 1))
    run = ("generate", plain, "--tokens", ids, "--ignore-eos", "--max-tokens")
    assert "[2 tokens" in (said := lockstep(*run, 9).out) and "context is full]" in said
    assert "[1 token, " in (said := lockstep(*run, 1).out) and "full" not in said


def test_half_precision_of_packed_weights_on_a_cpu_is_warned_of(lockstep, packed):
    run = ("check", packed, "--tokens", IDS, "--backend", "mlx")
    assert (
        "lockstep: warning: MLX sums packed weights in bfloat16 on a CPU"
        in lockstep(*run, "--dtype", "bfloat16").err
    )
    assert lockstep(*run).err == ""
    assert "sums" not in lockstep(*run[:-1], "cpu", "--dtype", "bfloat16").err


def test_inspect_takes_no_more_tokens_than_the_context_has(document, lockstep, plain, tmp_path):
    folder = Path(shutil.copytree(plain, tmp_path / "short"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    assert document("inspect", folder)["memory"]["tokens"] == 64
    assert "for 64 tokens in float32" in lockstep("inspect", folder).out


def test_a_trace_names_its_adapter(lockstep, tmp_path):
    folder = Path(__file__).parents[1] / "witnesses" / "adapters" / "mlx_lora"
    with np.load(folder / "expected.npz") as kept:
        base = Path(__file__).parents[2] / str(kept["base"])
    for name, more in (("plain", ()), ("tuned", ("--adapter", folder))):
        lockstep("trace", base, "--tokens", IDS, "-o", tmp_path / name, *more)
    found = [SafetensorsFile(tmp_path / name).metadata for name in ("plain", "tuned")]
    assert "adapter" not in found[0] and found[1]["adapter"] == "mlx_lora"
