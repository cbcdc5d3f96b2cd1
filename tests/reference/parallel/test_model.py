"""A model that is dealt out gives what it gives whole. By law: a sum may be made of parts."""

from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.reference.parallel.each import Each
from lockstep.reference.parallel.model import load
from tests.sampled import sampled
from tests.wide_models import SOURCES, wide_model

WITNESSES = Path(__file__).parents[2] / "witnesses"
LIMIT = 2e-5  # of the standard deviation of the logits
# Committed checkpoints, as many ranks as they can be dealt out to.
FITTING = {
    "llama/biased_llama3": (2, 4), "llama/llama_dynamic": (2, 4), "llama/llama_longrope": (2, 4),
    "llama/mistral_window": (2, 4), "llama/qwen2_yarn": (2, 4), "models/untied_float32": (2, 4),
    "models/biased_float16": (3,), "models/sliding_bfloat16": (2,), "models/affine_4_64": (2,),
    "models/affine_3_64": (2,), "gpt2/original": (3,), "gpt2/variant": (3,), "gpt2/packed": (2,),
    "qwen3_moe/separate": (2, 4), "qwen3_moe/fused": (2, 4), "qwen3_moe/packed": (2,),
    "gemma4/dense": (2, 4), "gemma4/effective": (2, 4), "gemma4/sparse": (2, 4),
    "gguf/qwen2_biased.gguf": (2, 4), "gguf/qwen3_mixed.gguf": (2,), "gguf/gpt2_turned.gguf": (3,),
    "gguf/llama_stretched.gguf": (2,), "gguf/gemma4_26b.gguf": (2,), "gguf/gemma4_31b.gguf": (2,),
    "gguf/gemma4_e2b-00001-of-00003.gguf": (2,),
}  # fmt: skip
ADAPTED = {
    "mlx_lora": ("models/tied_bfloat16", 2), "mlx_tables": ("models/biased_float16", 3),
    "mlx_dora": ("models/tied_bfloat16", 2), "peft_dora": ("models/biased_float16", 3),
    "mlx_experts": ("qwen3_moe/packed", 2), "peft_experts": ("qwen3_moe/fused", 4),
    "peft_gpt2": ("gpt2/original", 3), "peft_rslora": ("llama/biased_llama3", 4),
    "peft_saved": ("models/untied_float32", 4), "peft_tables": ("models/affine_4_64", 2),
}  # fmt: skip


def tokens_for(model) -> np.ndarray:
    return np.random.default_rng(7).integers(0, model.config.vocab_size, (2, 9))


def far(found: np.ndarray, whole: np.ndarray) -> float:
    assert found.shape == whole.shape
    return float(np.abs(found - whole).max() / whole.std())


def stepwise(model, tokens: np.ndarray) -> np.ndarray:
    """Run a prompt through the caches of all ranks, in parts, the last of single tokens."""
    cache, parts = model.make_cache(), [(0, 5), (5, 7), (7, 8), (8, 9)]
    return np.concatenate([model.forward(tokens[:, a:b], cache=cache) for a, b in parts], axis=1)


@sampled(5, "qwen3_moe/packed")
@pytest.mark.parametrize("name", FITTING)
def test_ranks_give_the_logits_of_one(name):
    one = reference.load(WITNESSES / name)
    tokens = tokens_for(one)
    whole = one.forward(tokens)
    assert np.array_equal(load(WITNESSES / name, ranks=1).forward(tokens), whole)
    for ranks in FITTING[name]:
        model = load(WITNESSES / name, ranks=ranks)
        assert far(model.forward(tokens), whole) < LIMIT
        assert far(stepwise(model, tokens), whole) < LIMIT
        last = model.forward(tokens, last_only=True, lengths=np.array([9, 4]))
        alone = one.forward(tokens[1:, :4], last_only=True)
        assert far(last[1:], alone) < LIMIT


MODES = [*((name, mode) for name in SOURCES for mode in (None, "affine")), ("qwen3", "mxfp4")]


@sampled(4, "gemma4 sparse-None")
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_four_ranks_of_every_architecture(tmp_path, name, mode):
    folder = wide_model(tmp_path, name, mode=mode)
    one, model = reference.load(folder), load(folder, ranks=4)
    tokens = tokens_for(one)
    assert far(stepwise(model, tokens), one.forward(tokens)) < LIMIT


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_are_dealt_out_with_the_weights(name):
    base, ranks = ADAPTED[name]
    base, adapter = WITNESSES / base, WITNESSES / "adapters" / name
    one = reference.load(base, adapter)
    tokens = tokens_for(one)
    whole = one.forward(tokens)
    assert far(load(base, adapter, ranks=ranks).forward(tokens), whole) < LIMIT
    assert far(reference.load(base).forward(tokens), whole) > 0.1  # it changes something


def test_what_ranks_have_of_their_own_is_their_part_of_the_whole():
    """By law: heads behind each other are all heads; what is summed all ranks have alike."""
    folder = WITNESSES / "models" / "untied_float32"
    one, model = reference.load(folder), load(folder, ranks=2)
    tokens, whole, dealt = tokens_for(one), {}, {}
    one.forward(tokens, trace=whole.__setitem__)
    model.forward(tokens, trace=dealt.__setitem__)
    assert whole.keys() == dealt.keys()
    path = "model.layers.0.self_attn"
    for name, axis in ((f"{path}.q_proj", -1), (f"{path}.k_rope", 1), (f"{path}.probs", 1)):
        assert isinstance(dealt[name], Each) and len(dealt[name]) == 2
        np.testing.assert_allclose(np.concatenate(dealt[name], axis), whole[name], atol=1e-5)
    for name in (f"{path}.o_proj", "model.layers.1", "lm_head"):
        np.testing.assert_allclose(dealt[name], whole[name], atol=1e-4)


def test_caches_hold_the_heads_of_their_ranks():
    """By hand: 2 of 4 heads, or 1 of 2 that all four ranks look at by twos."""
    folder = WITNESSES / "models" / "untied_float32"
    for ranks, heads in ((2, 1), (4, 1)):
        model = load(folder, ranks=ranks)
        cache = model.make_cache()
        model.forward([[1, 2, 3]], cache=cache)
        assert [one.arrays()[0].shape for one in cache.ranks] == [(1, heads, 3, 20)] * ranks
        assert cache.positions.length == 3
        twin = cache.branch()
        twin.trim(1)
        assert (cache.positions.length, twin.positions.length) == (3, 2)
        again = model.forward([[3]], cache=twin)
        assert np.array_equal(again, model.forward([[3]], cache=trimmed(cache)))


def trimmed(cache):
    cache.trim(1)
    return cache
