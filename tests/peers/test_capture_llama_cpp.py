"""Captures of llama.cpp: they change nothing, clean ones raise no alarm, bugs are named by them.

The truth is llama.cpp itself, run without a capture, and what was changed in the file that it runs.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest

from lockstep import parity, reference
from lockstep.parity.dumps.dump import open_dump
from lockstep.reference.checkpoint.errors import InputError
from tests.peers import test_gguf_gemma4_peers as gemma4
from tests.peers.test_gguf_peers import WIDE, random_model
from tests.peers.test_llama_cpp_gemma4_peers import no_tokenizer
from tests.peers.test_llama_cpp_peers import EXACT, qwen3, written
from tests.witnesses import build_gpt2, build_qwen3_moe, llama_cpp_runs

ROOT = Path(__file__).parents[2]
TOKENS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43]
DENSE = ("llama, plain", "llama, plain, biased", "mistral", "qwen2, plain", "qwen3")
GEMMA = ("31B", "E2B", "26B-A4B")
NAMES = (*DENSE, "qwen3_moe", "gpt2", *GEMMA)
BITS, TABLE = "activations-in-8-bits", "gelu-from-a-table"


def made(name: str, kind: str, folder: Path, seed: int = 1) -> Path:
    """Write a tiny model into a file."""
    path = folder / "m.gguf"
    if name in gemma4.BUILDS:
        add = partial(no_tokenizer, gemma4.BUILDS[name]["vocab_size"])
        gemma4.written(path, name, kind, seed, fused=False, tokenizer=add, most=0)
        return path
    if name == "gpt2":
        model = build_gpt2.random_model(seed, **(build_gpt2.SMALL | {"n_embd": 96}))
    elif name == "qwen3_moe":
        sizes = build_qwen3_moe.PACKABLE | {"mlp_only_layers": []}
        model = build_qwen3_moe.random_model(seed, **sizes)
    else:
        model = random_model(*EXACT[name](), seed)
    return written(path, model, kind, seed)


def captured(path: Path, tokens: list[int] = TOKENS, **options: Any) -> Any:
    llama = llama_cpp_runs.model(path, **options)
    with parity.capture.llama_cpp(llama) as dump:
        llama.eval(tokens)
    llama.close()
    return dump


def conventions(found: Any) -> set[str]:
    return {line.partition(":")[0] for line in found.conventions if ": " in line}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_a_clean_capture_changes_no_bit_and_raises_no_alarm(name, kind, tmp_path):
    path = made(name, kind, tmp_path)
    llama = llama_cpp_runs.model(path)
    llama.eval(TOKENS)
    before, context = llama.scores[: len(TOKENS)].tobytes(), llama._ctx
    with parity.capture.llama_cpp(llama) as dump:
        llama.eval(TOKENS)
    assert llama.scores[: len(TOKENS)].tobytes() == before
    assert dump.read("result_output").tobytes() == before
    assert llama._ctx is context and llama.n_tokens == 0
    llama.eval(TOKENS)
    assert llama.scores[: len(TOKENS)].tobytes() == before
    llama.close()

    assert (dump.tokens, dump.about["dtype"], dump.notes) == (TOKENS, "float32", [])
    assert dump.seconds > 0 and dump.nbytes == sum(dump.read(n).nbytes for n in dump.shapes)
    found = parity.explain(reference.load(path), dump)
    assert (found.verdict, found.faults, found.unexplained) == ("clean", [], [])
    assert found.compared > 25
    told = conventions(found)
    assert (BITS in told, TABLE in told) == (kind == "Q8_0", name in ("gpt2", *GEMMA))
    assert told <= {BITS, TABLE}


@pytest.mark.parametrize(
    "kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q6_K"]
)
def test_other_packed_files_are_clean_too(kind, tmp_path):
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 64}
    model = random_model(*qwen3(False, **(wide if kind in WIDE else {})), 1)
    path = written(tmp_path / "m.gguf", model, kind, 1)
    found = parity.explain(reference.load(path), captured(path))
    assert (found.verdict, found.unexplained, conventions(found)) == ("clean", [], {BITS})


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_files_in_half_precision_are_clean_too(kind, tmp_path):
    path = made("qwen3", kind, tmp_path)
    found = parity.explain(reference.load(path), captured(path))
    assert (found.verdict, found.unexplained) == ("clean", [])
    assert conventions(found) == {"activations-in-the-weights-half"}


def test_its_usual_cache_is_a_convention(tmp_path):
    path = made("qwen3", "F32", tmp_path)
    found = parity.explain(reference.load(path), captured(path, cache="float16"))
    assert (found.verdict, conventions(found)) == ("clean", {"attention-in-float16"})


def test_every_name_means_the_tap_that_it_is_mapped_to(tmp_path):
    """Against the reference's own taps: a wrong row of a table is off by far more."""
    for name in NAMES:
        path = made(name, "F32", tmp_path)
        dump = captured(path)
        result = parity.diff(dump, dump, model=reference.load(path))
        assert result.compared >= len(dump.shapes) - 2, name
        path.unlink()


def test_a_prompt_in_several_batches_and_then_steps(tmp_path):
    path = made("qwen3", "F32", tmp_path)
    options: dict[str, Any] = {"n_ctx": 64, "n_batch": 5, "n_ubatch": 3, "n_threads": 1}
    llama = llama_cpp.Llama(
        str(path), logits_all=True, verbose=False, type_k=0, type_v=0, **options
    )
    with parity.capture.llama_cpp(llama) as dump:
        for ids in (TOKENS, [7], [9]):
            llama.eval(ids)
    llama.close()
    assert (dump.tokens, dump.decoded, dump.notes) == (TOKENS, [7, 9], [])
    assert dump.shapes["kq_soft_max-0"] == (6, 13, 13)
    assert dump.shapes["step.2/kq_soft_max-1"] == (6, 1, 15)
    model = reference.load(path)
    truth = model.forward([[*TOKENS, 7, 9]])
    np.testing.assert_allclose(dump.read("step.2/result_output")[0], truth[0, -1], atol=1e-4)
    assert parity.explain(model, dump).verdict == "clean"
    dump.save(tmp_path / "port.safetensors")
    assert open_dump(tmp_path / "port.safetensors").decoded == [7, 9]


def test_a_second_prompt_is_another_pass(tmp_path):
    llama = llama_cpp_runs.model(made("qwen3", "F32", tmp_path))
    with parity.capture.llama_cpp(llama) as dump:
        llama.eval(TOKENS)
        llama.reset()
        llama.eval(TOKENS[:4])
    llama.close()
    assert dump.shapes["pass.2/l_out-0"] == (4, 64) and "pass 2" in dump.notes[0]
    assert dump.shapes["pass.2/kq_soft_max-0"] == (6, 4, 4)


def test_rows_that_were_not_asked_for_are_told(tmp_path):
    path = made("qwen3", "F32", tmp_path)
    llama = llama_cpp.Llama(str(path), n_ctx=64, verbose=False, type_k=0, type_v=0)
    with parity.capture.llama_cpp(llama) as dump:
        llama.eval(TOKENS)
    llama.close()
    assert "logits_all=True" in dump.notes[0] and "result_output" not in dump.shapes
    assert parity.explain(reference.load(path), dump).verdict == "clean"


def test_the_context_comes_back_after_an_exception_and_nothing_is_refused(tmp_path):
    llama = llama_cpp_runs.model(made("qwen3", "F32", tmp_path))
    own = llama._ctx
    with pytest.raises(ZeroDivisionError), parity.capture.llama_cpp(llama):
        llama.eval(TOKENS)
        raise ZeroDivisionError
    assert llama._ctx is own
    with pytest.raises(InputError, match="nothing was captured"), parity.capture.llama_cpp(llama):
        pass
    llama.close()


File = gguf.GGUFReader


def set_to(key: str, value: float) -> Callable[[File], None]:
    def change(file: File) -> None:
        field = file.get_field(f"{architecture(file)}.{key}")
        assert field is not None
        field.parts[field.data[0]][0] = value

    return change


def architecture(file: File) -> str:
    field = file.get_field("general.architecture")
    assert field is not None
    return field.contents()


def tensors(file: File) -> dict[str, np.ndarray]:
    return {tensor.name: tensor.data for tensor in file.tensors}


def gate_for_up(file: File) -> None:
    found = tensors(file)
    for name in [name for name in found if "ffn_gate." in name]:
        gate, up = found[name], found[name.replace("gate", "up")]
        gate[:], up[:] = up.copy(), gate.copy()


def rows_in_halves(file: File) -> None:
    """Put the rows of q and k as Hugging Face has them, which the converter forgot to turn."""
    for name, matrix in tensors(file).items():
        if "attn_q." in name or "attn_k." in name:
            heads = matrix.reshape(-1, 16, 2, matrix.shape[-1])  # heads are 32 wide
            matrix[:] = heads.swapaxes(1, 2).reshape(matrix.shape).copy()


def gains_of_one(file: File) -> None:
    for name, gain in tensors(file).items():
        if "norm" in name:
            gain[:] = 1


def embedding_for_head(file: File) -> None:
    found = tensors(file)
    found["output.weight"][:] = found["token_embd.weight"]


def layers_one_later(file: File) -> None:
    found = {name: data.copy() for name, data in tensors(file).items()}
    count = 1 + max(int(name.split(".")[1]) for name in found if name.startswith("blk."))
    for name, data in tensors(file).items():
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            data[:] = found[f"blk.{(int(layer) + 1) % count}.{rest}"]


# What runs, how its file is changed, and what may be named for it.
PLANTED: dict[str, tuple[str, Callable[[File], None], set[str]]] = {
    "another base": ("qwen3", set_to("rope.freq_base", 500000), {"rope-theta-default"}),
    "another epsilon": (
        "llama, plain",
        set_to("attention.layer_norm_rms_epsilon", 1e-8),
        {"rms-eps-wrong"},
    ),
    "gate for up": ("qwen2, plain", gate_for_up, {"swiglu-gate-up-swapped"}),
    "rows not turned": ("llama, plain", rows_in_halves, {"rope-unpermute-gqa"}),
    "gains of one": ("qwen3", gains_of_one, {"strict-false-drops-tensors"}),
    "head": ("qwen3", embedding_for_head, {"tied-head-mishandled"}),
    "layers one later": ("llama, plain", layers_one_later, {"layers-swapped"}),
}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_named(bug, kind, tmp_path):
    name, plant, ids = PLANTED[bug]
    path = made(name, kind, tmp_path)
    other = tmp_path / "other.gguf"
    other.write_bytes(path.read_bytes())
    plant(File(other, "r+"))
    found = parity.explain(reference.load(path), captured(other))
    assert found.verdict == "faults" and {one.id for one in found.faults} <= ids
    assert found.unexplained == []


def test_the_example_of_the_page_is_true(tmp_path, monkeypatch, capsys):
    page = (
        (ROOT / "docs/parity/capture.md").read_text(encoding="utf-8").split("\n## llama.cpp\n")[1]
    )
    example = re.search(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert example is not None
    for part in ("tests", "parity"):
        (tmp_path / part).symlink_to(ROOT / part)
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    assert capsys.readouterr().out == example[2]
