"""The copy of a folder that the benchmark gives to llama.cpp: read back by us, and run by it."""

import numpy as np
import pytest

from lockstep.parity.bench.gguf_copy import as_gguf, in_float32
from lockstep.parity.bench.shape import write_shape
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.parity.bench.test_shape import TINY
from tests.peers.test_gguf_peers import random_model
from tests.peers.test_llama_cpp_peers import EXACT, TABLE_OF_GELU
from tests.witnesses import build, build_gpt2, build_qwen3_moe, llama_cpp_runs
from tests.witnesses.judge import BAR, error

STORED = {"rope_scaling"}  # divided frequencies come back as a list of divisors


def check_copy(model, folder, tokens, bound, dtype="float32"):
    """The same config, the same tensors to every bit, and what llama.cpp makes of them."""
    source = open_checkpoint(build.save(model, folder, dtype=dtype))
    truth = build.truth(folder)
    with as_gguf(folder, "F32", ignore_config=()) as (path, said):
        assert said == "F32 copy"
        copy = open_checkpoint(path)
        told = {key: value for key, value in vars(source.config).items() if key not in STORED}
        assert {key: vars(copy.config)[key] for key in told} == told
        assert copy.names == source.names
        for name in source.names:
            stored = np.asarray(source.tensor(name), np.float32)
            np.testing.assert_array_equal(copy.tensor(name), stored)
        assert error(llama_cpp_runs.logits(path, tokens), build.logits(truth, tokens)) <= bound
    assert not path.exists() and not path.parent.exists()


@pytest.mark.parametrize("case", EXACT)
def test_models_that_turn_their_queries(case, storage, seed_for, tmp_path):
    seed = seed_for("gguf copy", case, storage)
    model = random_model(*EXACT[case](), seed)
    tokens = build.prompts(seed, model.config.vocab_size)
    check_copy(model, tmp_path / "model", tokens, BAR, storage)


def test_experts(seed_for, tmp_path):
    seed = seed_for("gguf copy, experts")
    base = build_qwen3_moe.PACKABLE | {"mlp_only_layers": [], "norm_topk_prob": True}
    tokens = build.prompts(seed, base["vocab_size"])
    for attempt in range(40):
        model = build_qwen3_moe.random_model(seed + attempt, **base)
        if build_qwen3_moe.settled(model, tokens):
            break
    check_copy(model, tmp_path / "model", tokens, BAR)


def test_gpt2(tied, seed_for, tmp_path):
    seed = seed_for("gguf copy, gpt2", tied)
    model = build_gpt2.random_model(seed, **build_gpt2.SMALL | {"tie_word_embeddings": tied})
    tokens = build.prompts(seed, model.config.vocab_size)
    check_copy(model, tmp_path / "model", tokens, TABLE_OF_GELU)


@pytest.mark.parametrize("form", ["BF16", "F16", "Q8_0", "Q4_0", "Q5_1"])
def test_copies_in_other_types(form, tmp_path):
    """By witness: the blocks are those that the gguf package makes, and llama.cpp runs them."""
    import gguf

    source = open_checkpoint(write_shape(TINY, tmp_path / "model", "float32"))
    with as_gguf(tmp_path / "model", form, ignore_config=()) as (path, said):
        assert said == f"{form} copy: not the same weights"
        copy = open_checkpoint(path)
        kinds = {one.name: one.tensor_type for one in gguf.GGUFReader(path).tensors}
        for ours, theirs in (("mlp.up_proj", "ffn_up"), ("self_attn.o_proj", "attn_output")):
            name, kind = f"model.layers.0.{ours}.weight", kinds[f"blk.0.{theirs}.weight"]
            assert kind.name == form
            rounded = gguf.quants.dequantize(gguf.quants.quantize(source.tensor(name), kind), kind)
            np.testing.assert_array_equal(in_float32(copy.tensor(name)), rounded)
        assert np.isfinite(llama_cpp_runs.logits(path, np.array([[1, 2, 3, 4]]))).all()
