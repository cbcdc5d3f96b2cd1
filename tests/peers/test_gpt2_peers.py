"""GPT-2 against transformers in float32, and against mlx-lm. By witness, live."""

import contextlib
import io

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from transformers import GPT2LMHeadModel

from lockstep import parity, reference
from lockstep.parity.dumps.tracing import trace_run
from tests.peers.conftest import Drawn
from tests.witnesses import build, build_gpt2
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import ENGINES, Runner

KINDS = {
    "plain": {},
    "exact gelu": {"activation_function": "gelu"},
    "pytorch's tanh": {"activation_function": "gelu_pytorch_tanh"},
    "inner width": {"n_inner": 88},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "untied": {"tie_word_embeddings": False},
    "upcast": {"reorder_and_upcast_attn": True},
}


def draw_config(seed: int) -> dict:
    """Draw the sizes of a small model."""
    rng = np.random.default_rng(seed)
    heads = int(rng.integers(2, 6))
    return build_gpt2.SMALL | {
        "vocab_size": int(rng.integers(80, 300)),
        "n_positions": int(rng.integers(56, 90)),
        "n_embd": heads * int(rng.integers(6, 14)),
        "n_head": heads,
        "n_layer": int(rng.integers(2, 4)),
        "layer_norm_epsilon": float(rng.choice([1e-5, 1e-6, 1e-3])),
    }


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def drawn(kind, storage, seed_for, tmp_path) -> Drawn:
    seed = seed_for("gpt2", kind, storage)
    config = draw_config(seed) | KINDS[kind]
    folder = build.save(build_gpt2.random_model(seed, **config), tmp_path / "model", dtype=storage)
    return Drawn(folder, build.prompts(seed, config["vocab_size"]))


def compare(drawn: Drawn, row: str, judge) -> None:
    """Hold every engine against transformers: logits, cached, unequal, greedy, modules."""
    model, lengths = build_gpt2.truth(drawn.folder), [build.PROMPT, build.SHORT]
    expected = build.logits(model, drawn.tokens)
    ids, seen = build.greedy(model, drawn.tokens)
    unequal_ids, unequal_seen = build.greedy_unequal(model, drawn.tokens)
    modules = build_gpt2.activations(model, drawn.tokens)
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        judge(engine, row, runner.logits(drawn.tokens), expected)
        judge(engine, f"{row}, cached", runner.chunked(drawn.tokens, [7, 1, 31, 1]), expected)
        same_tokens(runner.greedy(drawn.tokens, build.GREEDY)[0], ids, seen)
        found, _ = runner.greedy(drawn.tokens, build.GREEDY, lengths=lengths)
        same_tokens(found, unequal_ids, unequal_seen)
        taps = runner.taps(drawn.tokens)
        assert len(modules) > 16
        for name, value in modules.items():
            judge(engine, "modules", taps[name], np.broadcast_to(value, taps[name].shape))


def test_stored_by_transformers(drawn, kind, judge):
    compare(drawn, f"gpt2, {kind}", judge)
    sdpa = build.logits(build_gpt2.truth(drawn.folder, attention="sdpa"), drawn.tokens)
    for engine in ENGINES:
        judge(engine, "gpt2, sdpa", Runner(engine, drawn.folder).logits(drawn.tokens), sdpa)


@pytest.mark.parametrize("masked_bias", [False, True])
def test_stored_as_on_the_hub(masked_bias, storage, seed_for, judge, tmp_path):
    seed = seed_for("gpt2 hub", masked_bias, storage)
    config = draw_config(seed)
    folder = build.save(build_gpt2.random_model(seed, **config), tmp_path / "model", dtype=storage)
    build_gpt2.as_on_the_hub(folder, masked_bias=masked_bias)
    compare(Drawn(folder, build.prompts(seed, config["vocab_size"])), "gpt2, hub", judge)


def converted(seed: int, storage: str, folder, **packing) -> Drawn:
    """Let mlx-lm convert a fresh model, which it can read in the hub's form alone."""
    config = draw_config(seed) | ({"n_embd": 64, "n_head": 4} if packing else {})
    plain = build.save(build_gpt2.random_model(seed, **config), folder / "plain", dtype=storage)
    build_gpt2.as_on_the_hub(plain)
    with contextlib.redirect_stdout(io.StringIO()):
        if packing:
            build.convert(plain, folder / "converted", **packing)
        else:
            build.write_tokenizer(plain)
            mlx_lm.convert(str(plain), str(folder / "converted"))
    return Drawn(folder / "converted", build.prompts(seed, config["vocab_size"]))


def compare_with_mlx(drawn: Drawn, judge) -> None:
    model, _ = mlx_lm.load(str(drawn.folder))
    model.set_dtype(mx.float32)
    theirs = np.array(model(mx.array(drawn.tokens)))
    for engine in ENGINES:
        judge(engine, "gpt2, to mlx-lm", Runner(engine, drawn.folder).logits(drawn.tokens), theirs)


def test_converted_by_mlx(storage, seed_for, judge, tmp_path):
    drawn = converted(seed_for("gpt2 mlx", storage), storage, tmp_path)
    compare(drawn, "gpt2, mlx-lm", judge)
    compare_with_mlx(drawn, judge)


@pytest.mark.parametrize("bits, group_size", [(2, 32), (3, 64), (4, 32), (4, 64), (6, 32), (8, 64)])
def test_packed_by_mlx(bits, group_size, storage, seed_for, judge, tmp_path):
    seed = seed_for("gpt2 packed", bits, group_size, storage)
    drawn = converted(seed, storage, tmp_path, bits=bits, group_size=group_size)
    compare(drawn, "gpt2, packed", judge)
    compare_with_mlx(drawn, judge)


def test_mixed_packings(storage, seed_for, judge, tmp_path):
    seed = seed_for("gpt2 mixed", storage)

    def predicate(path, module):
        wide = path.endswith("c_proj")
        fits = hasattr(module, "to_quantized")
        return {"bits": 8 if wide else 4, "group_size": 32} if fits else False

    drawn = converted(seed, storage, tmp_path, bits=4, group_size=64, predicate=predicate)
    compare(drawn, "gpt2, mixed", judge)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", build.DTYPES)
def test_what_transformers_dumps_is_in_parity(dtype, attention, storage, seed_for, tmp_path):
    """In every dtype, judged by what the oracle makes of the port's own inputs."""
    seed = seed_for("gpt2 dump", dtype, attention, storage)
    config = draw_config(seed) | {"activation_function": ["gelu", "gelu_new"][seed % 2]}
    folder = build.save(build_gpt2.random_model(seed, **config), tmp_path / "model", dtype=storage)
    model = GPT2LMHeadModel.from_pretrained(
        folder, dtype=build.DTYPES[dtype], attn_implementation=attention
    ).eval()
    tokens = build.prompts(seed, config["vocab_size"])[:1]
    oracle = reference.load(folder, dtype=dtype)
    trace_run(oracle, tokens[0].tolist(), tmp_path / "left.safetensors", globs=None, decode=0)
    right = {
        name: value.astype(np.float16) if dtype == "float16" else value
        for name, value in build_gpt2.activations(model, tokens).items()
    }
    np.savez(tmp_path / "right.npz", **right)
    result = parity.diff(tmp_path / "left.safetensors", tmp_path / "right.npz", model=oracle)
    assert result.compared > 16
    assert result.first_divergence is None, result.first_divergence


def test_positions_with_gaps(storage, seed_for, engine, judge, tmp_path):
    seed = seed_for("gpt2 gaps", storage)
    config = draw_config(seed) | {"n_positions": 200}
    folder = build.save(build_gpt2.random_model(seed, **config), tmp_path / "model", dtype=storage)
    tokens = build.prompts(seed, config["vocab_size"])
    positions = np.random.default_rng(seed).integers(1, 6, tokens.shape).cumsum(axis=1) - 1
    expected = build.logits_at(build_gpt2.truth(folder), tokens, positions)
    found = Runner(engine, folder).logits(tokens, positions=positions)
    judge(engine, "gpt2, positions with gaps", found, expected)
