"""A GGUF file wherever a command takes MODEL: what is said, and the exit codes. By hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.check import check
from lockstep.parity.inspection import inspection
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests import gguf_bytes as g
from tests import gguf_gemma4_bytes as gemma4
from tests.sampled import sampled

FILES = Path(__file__).parents[1] / "witnesses" / "gguf"
TIED, MIXED = FILES / "qwen3_tied.gguf", FILES / "qwen3_mixed.gguf"
NAMES = ("llama_stretched", "qwen3_mixed", "qwen3_tied")


def test_inspect(lockstep):
    said = lockstep("inspect", MIXED, "--tensors")
    assert (said.code, said.err) == (0, "")
    for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0", "BF16", "F16"):
        assert f" {name}" in said.out
    assert "qwen3: 4 layers, width 256" in said.out


def test_bits_and_memory():
    """By hand: blocks of 34 bytes for 32 weights, norms of 4 bytes; packed is not counted wide."""
    found = inspection(open_checkpoint(TIED))
    matrices = 704 * 32 + 2 * (2 * 96 * 32 + 2 * 32 * 32 + 3 * 128 * 32)
    norms = 5 * 32 + 2 * 2 * 16
    assert found["parameters"] == matrices + norms
    assert found["memory"]["weights"] == matrices // 32 * 34 + norms * 4
    # MLX's own groups have a scale and an offset in float32 for 32 weights.
    held = matrices // 32 * 34 + matrices // 4 + norms * 4
    assert held < found["memory"]["fast"]
    assert found["formats"]["Q8_0"]["tensors"] == 15


@pytest.mark.parametrize("backend", ["reference", "mlx", "cpu"])
def test_generate(lockstep, backend):
    """By law: the ids are those of the largest logits, step by step."""
    arguments = ("--prompt", "hi", "--max-tokens", "5", "--backend", backend, "--json", "-")
    said = lockstep("generate", TIED, *arguments)
    assert said.code == 0, said.err
    model, fed, ids = reference.load(TIED), encoded(lockstep), []
    cache = model.make_cache()
    for _ in range(5):
        fed = [int(model.forward([fed], cache=cache)[0, -1].argmax())]
        ids += fed
    assert json.loads(said.out)["tokens"] == ids


def encoded(lockstep) -> list[int]:
    return json.loads(lockstep("tokenize", TIED, "--prompt", "hi", "--json", "-").out)["tokens"]


@sampled(2, "cpu-qwen3_mixed")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["mlx", "cpu"])
def test_check_says_parity(name, backend):
    """By law: a backend that is right shows nothing beyond the noise."""
    path, tokens = FILES / f"{name}.gguf", np.arange(24)[None] * 7 % 60
    port = fast.load(path, backend=backend)
    result = check(reference.load(path), port, tokens, decode=1)
    assert result.first_divergence is None
    assert result.compared > 30


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_check_says_parity_in_half_precision(dtype):
    """By law, on the CPU backend: MLX on a CPU sums packed weights in half precision."""
    tokens = np.arange(24)[None] * 7 % 60
    port = fast.load(MIXED, backend="cpu", dtype=dtype)
    result = check(reference.load(MIXED, dtype=dtype), port, tokens)
    assert result.first_divergence is None


def test_a_file_that_is_none(lockstep, tmp_path):
    """By law: one line, exit code 2, nothing on standard output."""
    bad = {
        "cut.gguf": (g.model()[:-32], "file truncated"),
        "other.gguf": (b"{}" * 20, "not a GGUF file, it looks like JSON text"),
        "gone.gguf": (None, "no such file"),
    }
    for name, (data, core) in bad.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        said = lockstep("inspect", tmp_path / name)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("lockstep: error: ") and core in said.err
        assert said.err.count("\n") == 1


def test_nothing_is_written_over_the_model(lockstep, tmp_path):
    (tmp_path / "m.gguf").write_bytes(TIED.read_bytes())
    target = tmp_path / "m.gguf"
    said = lockstep("trace", target, "--tokens", "1,2", "-o", target)
    assert said.code == 2 and "is also read by this command" in said.err
    assert target.read_bytes() == TIED.read_bytes()


def test_gemma4_in_parts(lockstep, tmp_path):
    """By hand: what is said of all parts together; the others are named, and missed."""
    first = FILES / "gemma4_e2b-00001-of-00003.gguf"
    said = lockstep("inspect", first)
    assert (said.code, said.err) == (0, "")
    assert "4 layers, width 64, 4 heads of 16 over 2 key/value heads; of 32" in said.out
    assert " in 67 tensors" in said.out
    said = lockstep("inspect", FILES / "gemma4_e2b-00003-of-00003.gguf")
    assert (said.code, said.out) == (2, "")
    assert "is part 3 of 3: give the first one, 'gemma4_e2b-00001-of-00003.gguf'" in said.err
    alone = tmp_path / first.name
    alone.write_bytes(first.read_bytes())
    said = lockstep("inspect", alone)
    assert said.code == 2 and said.err.count("\n") == 1
    assert "part 2 of 3 is missing (there is no 'gemma4_e2b-00002-of-00003.gguf'" in said.err


def test_gemma4_speaks_by_itself(lockstep, tmp_path):
    """By hand: a model of zeros takes token 0, <pad>, which has no text, until it is stopped."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gemma4.whole())
    said = lockstep("tokenize", path, "--prompt", "ab a", "--json", "-")
    assert json.loads(said.out)["tokens"] == [2, 5, 7, 3]
    said = lockstep("generate", path, "--prompt", "ab a", "--max-tokens", "3", "--json", "-")
    assert (said.code, json.loads(said.out)["tokens"]) == (0, [0, 0, 0])
