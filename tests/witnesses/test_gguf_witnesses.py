"""GGUF files that llama.cpp's own package wrote, against transformers in float32. By witness.

`make_gguf.py` made them: every block format, stretched positions, moved rows and turned
matrices, biases, the builds of Gemma 4, a model in parts.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.ops import dequantize
from tests.witnesses.judge import judge
from tests.witnesses.runners import ENGINES, Runner

__all__ = ["judge"]

HERE = Path(__file__).parent / "gguf"
NAMES = (
    *("gpt2_turned", "llama_stretched", "qwen2_biased", "qwen3_mixed", "qwen3_tied"),
    *("gemma4_31b", "gemma4_26b", "gemma4_e2b"),
)
# The first of three files.
PARTED = {"gemma4_e2b": "gemma4_e2b-00001-of-00003"}


def path_of(name: str) -> Path:
    return HERE / f"{PARTED.get(name, name)}.gguf"


@cache
def expected(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / f"{name}.npz") as found:
        return dict(found)


@cache
def runner(engine: str, name: str) -> Runner:
    return Runner(engine, path_of(name))


every = pytest.mark.parametrize("name", NAMES)
on_each = pytest.mark.parametrize("engine", ENGINES)


@every
@on_each
def test_logits(engine, name, judge):
    truth = expected(name)
    judge(engine, f"gguf {name}", runner(engine, name).logits(truth["tokens"]), truth["logits"])


@every
def test_float64_logits(name, judge):
    truth = expected(name)
    found = Runner("float64", path_of(name)).logits(truth["tokens"])
    judge("float64", f"gguf {name}", found, truth["logits"])


@every
@on_each
def test_cached_chunks_equal_the_prefill(engine, name, judge):
    truth = expected(name)
    found = runner(engine, name).chunked(truth["tokens"], [1, 17, 21, 1])
    judge(engine, "gguf, cached", found, truth["logits"])


@every
@on_each
def test_prompts_of_unequal_length_go_on_as_if_alone(engine, name):
    truth = expected(name)
    count = truth["greedy"].shape[1]
    found, _ = runner(engine, name).greedy(truth["tokens"], count, lengths=truth["lengths"])
    np.testing.assert_array_equal(found, truth["greedy"])


@every
def test_rows_of_keys_come_in_the_order_of_hugging_face(name):
    checkpoint, truth = open_checkpoint(path_of(name)), expected(name)["key"]
    path = "model.layers.0.self_attn.k_proj.weight"
    path = path if checkpoint.has(path) else "transformer.h.0.attn.c_attn.weight"
    dtype = np.dtype(np.float32)
    whole = checkpoint.tensor(path)
    np.testing.assert_array_equal(dequantize(whole, rows=slice(None), dtype=dtype), truth)
    half, count = len(truth) // 2, len(truth)
    for start, stop in ((0, count), (5, 6), (half - 1, half + 3), (7, 7)):
        part = checkpoint.tensor_rows(path, start, stop)
        found = dequantize(part, rows=slice(None), dtype=dtype)
        np.testing.assert_array_equal(found, truth[start:stop])


def test_every_format_is_among_them():
    stored = set()
    for name in NAMES:
        checkpoint = open_checkpoint(path_of(name))
        stored |= {checkpoint.stored(tensor).dtype for tensor in checkpoint.names}
    assert stored == {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    }
