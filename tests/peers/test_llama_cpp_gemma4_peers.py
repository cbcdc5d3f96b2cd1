"""llama.cpp itself on GGUF files of Gemma 4: it opens them, and says nearly the same.

ggml looks GELU up in a table for every float16 there is, so its inputs and outputs are rounded to
11 bits. 2e-3 to 7e-3 was seen; a wrong key or a wrong tensor is off by 0.1 and more.
"""

from functools import partial

import gguf
import numpy as np
import pytest
import torch

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.peers.test_gguf_gemma4_peers import BUILDS, sizes_of, written
from tests.peers.test_gguf_tokenizer_peers import HARD, write_tokenizer
from tests.witnesses import build, build_gemma4, gguf_files, gguf_gemma4, llama_cpp_runs
from tests.witnesses.judge import error
from tests.witnesses.runners import ENGINES, Runner

TABLE_OF_GELU = 2e-2


def no_tokenizer(vocabulary: int, writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(vocabulary)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("which", BUILDS)
def test_every_build(which, fused, seed_for, tmp_path):
    seed, vocabulary = seed_for("llama.cpp gemma4", which, fused), BUILDS[which]["vocab_size"]
    add = partial(no_tokenizer, vocabulary)
    written(tmp_path / "m.gguf", which, "F32", seed, fused=fused, tokenizer=add, most=20)
    first = min(tmp_path.iterdir())  # of several parts
    tokens = build.prompts(seed, vocabulary)
    expected = llama_cpp_runs.logits(first, tokens)
    for engine in ENGINES:
        assert error(Runner(engine, first).logits(tokens), expected) < TABLE_OF_GELU


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_tokenizer(adds_bos, tmp_path):
    theirs, path = gguf_gemma4.trained_tokenizer(), tmp_path / "m.gguf"
    size = theirs.get_vocab_size()
    write_tokenizer(path, gguf_gemma4.writes_tokenizer(theirs, size=size, adds_bos=adds_bos))
    ours, texts = load_tokenizer(path), [text for text in (*HARD, *gguf_gemma4.TEXTS) if text]
    assert [ours.encode(text) for text in texts] == llama_cpp_runs.token_ids(path, texts)


def test_it_caps_where_no_cap_is_written(seed_for, tmp_path):
    """Its converter writes no key where there is none. There llama.cpp is off, and we refuse."""
    seed = seed_for("llama.cpp gemma4, no cap")
    none = {"final_logit_softcapping": None, "tie_word_embeddings": False}
    model = build_gemma4.random_model(seed, **sizes_of("31B", "F32") | none)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # so that a cap of 30 is felt
    vocabulary = model.config.vocab_size
    add = partial(no_tokenizer, vocabulary)
    path = tmp_path / "m.gguf"
    gguf_files.loaded(model, gguf_files.write_gguf(path, model, "F32", tokenizer=add, seed=seed))
    tokens = build.prompts(seed, vocabulary)
    truth, theirs = build.logits(model, tokens), llama_cpp_runs.logits(path, tokens)
    assert error(theirs, truth) > 10 * TABLE_OF_GELU
    assert error(theirs, 30 * np.tanh(truth / 30)) < TABLE_OF_GELU
    with pytest.raises(InputError, match="must be a number, 0 for no cap"):
        open_checkpoint(path)
