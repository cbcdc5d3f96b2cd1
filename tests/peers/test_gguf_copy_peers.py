"""The copy of a folder that the benchmark gives to llama.cpp: read back by us, and run by it."""

import numpy as np
import pytest

from lockstep.parity.bench.gguf_copy import as_gguf
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.peers.test_gguf_peers import random_model
from tests.peers.test_llama_cpp_peers import EXACT, TABLE_OF_GELU
from tests.witnesses import build, build_gpt2, build_qwen3_moe, llama_cpp_runs
from tests.witnesses.judge import BAR, error

STORED = {"rope_scaling"}  # divided frequencies come back as a list of divisors


def check_copy(model, folder, tokens, bound, dtype="float32"):
    """The same config, the same tensors to every bit, and what llama.cpp makes of them."""
    source = open_checkpoint(build.save(model, folder, dtype=dtype))
    truth = build.truth(folder)
    with as_gguf(folder, ignore_config=()) as path:
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
