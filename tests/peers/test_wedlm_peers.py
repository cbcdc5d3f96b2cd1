"""Both builds of WeDLM against transformers' Qwen3 and Qwen2, same tensors. By witness, live."""

from typing import Any

import gguf
import numpy as np
import pytest

from tests.peers.conftest import Drawn
from tests.witnesses import build, build_llama, gguf_files
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import ENGINES, Runner

# Layers of which family, and the keys that WeDLM adds to its config.
BUILDS: dict[str, tuple[str, dict[str, Any]]] = {
    "8B": ("qwen3", {"attention_bias": False, "qk_norm": True, "mask_token_id": None}),
    "7B": ("qwen2", {"attention_bias": True, "qk_norm": False, "mask_token_id": 5}),
}
NAME = {"model_type": "wedlm", "architectures": ["WeDLMForCausalLM"]}


@pytest.mark.parametrize("which", BUILDS)
def test_both_builds(which, tied, storage, seed_for, judge, tmp_path):
    family, added = BUILDS[which]
    seed = seed_for("wedlm", which, tied, storage)
    rng = np.random.default_rng(seed)
    keys = build_llama.config(
        family, str(rng.choice(["default", "linear", "yarn"])), tie_word_embeddings=tied, theta=1e6
    )
    folder = build_llama.save(build_llama.random_model(seed, keys), tmp_path, dtype=storage)
    drawn = Drawn(folder, build.prompts(seed, keys["vocab_size"]))
    model = build.truth(folder)
    expected = build_llama.logits(model, drawn.tokens)
    ids, seen = build_llama.greedy(model, drawn.tokens)
    lengths = [build.PROMPT, build.SHORT]
    unequal_ids, unequal_seen = build_llama.greedy_unequal(model, drawn.tokens)
    build.edit_config(folder, lambda config: config.update(NAME | added))
    for engine in ENGINES:
        runner = Runner(engine, folder)
        assert runner.model.checkpoint.architecture == "wedlm"
        judge(engine, which, runner.logits(drawn.tokens), expected)
        judge(engine, f"{which}, cached", runner.chunked(drawn.tokens, [7, 1, 31, 1]), expected)
        same_tokens(runner.greedy(drawn.tokens, build.GREEDY)[0], ids, seen)
        found, _ = runner.greedy(drawn.tokens, build.GREEDY, lengths=lengths)
        same_tokens(found, unequal_ids, unequal_seen)


# llama.cpp has no architecture of this name: a converter writes WeDLM as what its layers are.
PACKABLE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_attention_heads": 8}


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q5_1"])
@pytest.mark.parametrize("which", BUILDS)
def test_gguf_files_of_both_builds(which, kind, tied, seed_for, judge, tmp_path):
    """The file says Qwen3 or Qwen2; what it computes is what WeDLM's own folder computes."""
    family, added = BUILDS[which]
    seed = seed_for("wedlm gguf", which, kind, tied)
    rope = "yarn" if seed % 2 else "default"
    keys = build_llama.config(family, rope, tie_word_embeddings=tied, theta=1e6, **PACKABLE)
    model, path = build_llama.random_model(seed, keys), tmp_path / "m.gguf"
    held = gguf_files.write_gguf(path, model, kind, tokenizer=with_mask, seed=seed)
    folder = build_llama.save(gguf_files.loaded(model, held), tmp_path / "folder", dtype="float32")
    truth, tokens = build.truth(folder), build.prompts(seed, keys["vocab_size"])
    expected, lengths = build_llama.logits(truth, tokens), [build.PROMPT, build.SHORT]
    ids, seen = build_llama.greedy_unequal(truth, tokens)
    build.edit_config(folder, lambda config: config.update(NAME | added))
    for engine in ENGINES:
        runner, own = Runner(engine, path), Runner(engine, folder)
        assert own.model.checkpoint.architecture == "wedlm"
        assert runner.model.checkpoint.architecture == family
        judge(engine, f"{which}, gguf {kind}", runner.logits(tokens), expected)
        cached = runner.chunked(tokens, [7, 1, 31, 1])
        judge(engine, f"{which}, gguf {kind}, cached", cached, expected)
        same_tokens(runner.greedy(tokens, build.GREEDY, lengths=lengths)[0], ids, seen)
        if kind == "F32":
            assert runner.exact(tokens).tobytes() == own.exact(tokens).tobytes()


def with_mask(writer: gguf.GGUFWriter) -> None:
    """Name the token that WeDLM's decoder puts where a text is still open."""
    writer.add_mask_token_id(5)
