"""GGUF files that the gguf package writes, against that package and transformers."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.checkpoint.gguf.file import GgufFile
from lockstep.reference.checkpoint.gguf.metadata import Array
from lockstep.reference.ops import dequantize
from tests.witnesses import build, build_gpt2, build_qwen3_moe, gguf_files
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import ENGINES, Runner

WIDE = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
KINDS = ("F32", "F16", "BF16", *BLOCKS)
COMMON = ("F32", "F16", "Q8_0", "Q4_0", "Q5_1")
ROPES = {
    "plain": {"rope_type": "default", "rope_theta": 5e5},
    "llama3": {
        **{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    },
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {
        **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
        "original_max_position_embeddings": 16,
    },
}
SIZES = {
    **{"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 130},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5},
    **{"max_position_embeddings": 64},
}
DEMO = Path(__file__).parents[2] / "parity" / "demo" / "checkpoint"


def random_model(kind, config, seed: int):
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(build._spread(name, torch.randn(parameter.shape, generator=generator)))
    return model


def compare(model, path: Path, types, seed: int, row: str, judge) -> None:
    """Write a model, and hold every engine against transformers on the values of the file."""
    gguf_files.loaded(model, gguf_files.write_gguf(path, model, types, seed=seed))
    hold(model, path, seed, row, judge)


def hold(model, path: Path, seed: int, row: str, judge) -> None:
    tokens = build.prompts(seed, model.config.vocab_size)
    expected, (ids, seen) = build.logits(model, tokens), build.greedy_unequal(model, tokens)
    for engine in ENGINES:
        runner = Runner(engine, path)
        judge(engine, row, runner.logits(tokens), expected)
        judge(engine, f"{row}, cached", runner.chunked(tokens, [3, 1, 35, 1]), expected)
        lengths = np.array([build.PROMPT, build.SHORT])
        same_tokens(runner.greedy(tokens, build.GREEDY, lengths)[0], ids, seen)


@pytest.mark.parametrize("kind", KINDS)
def test_qwen3(kind, tied, seed_for, judge, tmp_path):
    seed = seed_for("gguf", kind, tied)
    width = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 64}
    sizes = build.SMALL | (width if kind in WIDE else {"head_dim": 32})
    config = Qwen3Config(**sizes | {"tie_word_embeddings": tied})
    model = random_model(Qwen3ForCausalLM, config, seed)
    compare(model, tmp_path / "m.gguf", kind, seed, f"gguf {kind}", judge)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("biased", [False, True])
def test_llama(rope, biased, seed_for, judge, tmp_path):
    seed = seed_for("gguf llama", rope, biased)
    switches = {"attention_bias": biased, "mlp_bias": biased, "tie_word_embeddings": biased}
    config = LlamaConfig(**SIZES | switches | {"rope_parameters": ROPES[rope]})
    model = random_model(LlamaForCausalLM, config, seed)
    kind = ("Q8_0", "Q4_0", "BF16", "Q5_1", "IQ4_NL")[seed % 5]
    compare(model, tmp_path / "m.gguf", kind, seed, f"gguf llama, {rope}", judge)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_1", "IQ4_NL", "MXFP4", "Q4_K", "Q6_K"])
def test_qwen3_moe(kind, seed_for, judge, tmp_path):
    """Stacks of experts: repacked on MLX, or expanded a layer at a time."""
    seed = seed_for("gguf moe", kind)
    width = {"hidden_size": 256, "moe_intermediate_size": 256} if kind in WIDE else {}
    width |= {"num_attention_heads": 8, "head_dim": 32} if kind in WIDE else {}
    base = build_qwen3_moe.PACKABLE | {"mlp_only_layers": []} | width
    tokens = build.prompts(seed, base["vocab_size"])
    for attempt in range(40):
        model = build_qwen3_moe.random_model(seed + attempt, **base)
        path = tmp_path / f"{attempt}.gguf"
        held = gguf_files.write_gguf(path, model, lambda name: router(name) or kind, seed=seed)
        gguf_files.loaded(model, held)
        if build_qwen3_moe.settled(model, tokens):
            break
    hold(model, path, seed, f"gguf moe, {kind}", judge)


def router(name: str) -> str | None:
    """llama.cpp keeps routers in float32."""
    return "F32" if name.endswith("mlp.gate.weight") else None


def test_mistral(seed_for, judge, tmp_path):
    seed = seed_for("gguf mistral")
    config = MistralConfig(**SIZES | {"rope_parameters": ROPES["plain"], "sliding_window": None})
    model = random_model(MistralForCausalLM, config, seed)
    compare(model, tmp_path / "m.gguf", "Q4_1", seed, "gguf mistral", judge)


@pytest.mark.parametrize("kind", COMMON)
@pytest.mark.parametrize("rope", ["plain", "linear", "yarn"])
def test_qwen2(kind, rope, seed_for, judge, tmp_path):
    """Biases on queries, keys and values; the width of a head is given, or an equal share."""
    seed = seed_for("gguf qwen2", kind, rope)
    sizes = SIZES | {"rope_parameters": ROPES[rope], "tie_word_embeddings": rope == "linear"}
    if rope == "plain":
        del sizes["head_dim"]
    model = random_model(Qwen2ForCausalLM, Qwen2Config(**sizes), seed)
    compare(model, tmp_path / "m.gguf", kind, seed, f"gguf qwen2, {kind}", judge)


@pytest.mark.parametrize("kind", [*COMMON, "IQ4_NL", "Q4_K", "Q6_K"])
def test_gpt2(kind, tied, seed_for, judge, tmp_path):
    """Queries, keys and values in one matrix, turned by the converter; a table of positions."""
    seed = seed_for("gguf gpt2", kind, tied)
    width = {"n_embd": 256, "n_head": 8} if kind in WIDE else {"n_embd": 96, "n_head": 3}
    sizes = build_gpt2.SMALL | width | {"tie_word_embeddings": tied}
    model = build_gpt2.random_model(seed, **sizes)
    compare(model, tmp_path / "m.gguf", kind, seed, f"gguf gpt2, {kind}", judge)


def test_gpt2_with_a_packed_table_of_positions(seed_for, judge, tmp_path, monkeypatch):
    """The converter leaves it plain; no rule of the format does."""
    monkeypatch.setattr(gguf_files, "PLAIN", ())
    seed = seed_for("gguf gpt2, packed positions")
    model = build_gpt2.random_model(seed, **build_gpt2.PACKABLE)
    compare(model, tmp_path / "m.gguf", "Q8_0", seed, "gguf gpt2, packed positions", judge)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2", "gpt2"])
def test_transformers_reads_the_same_file(family, seed_for, judge, tmp_path):
    """The names, the moved rows and the config, as transformers' own GGUF reader has them."""
    seed = seed_for("gguf by transformers", family)
    rope = {"rope_parameters": ROPES["plain"], "tie_word_embeddings": False}
    kinds = {
        "qwen3": (Qwen3ForCausalLM, Qwen3Config),
        "llama": (LlamaForCausalLM, LlamaConfig),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    }
    # transformers' reader does not look at key_length: it takes Qwen3's usual width of a head, and
    # an equal share of the hidden width for Llama.
    heads = {"num_attention_heads": 6, "head_dim": 128 if family == "qwen3" else 16}
    if family == "gpt2":
        # It has always 1024 positions for GPT-2, whatever the file says.
        model = build_gpt2.random_model(seed, **build_gpt2.SMALL | {"n_positions": 1024})
    else:
        kind, config = kinds[family]
        model = random_model(kind, config(**SIZES | rope | heads), seed)
    path = tmp_path / "m.gguf"
    names = [f"t{number}" for number in range(model.config.vocab_size)]
    gguf_files.write_gguf(path, model, "F32", tokenizer=lambda one: one.add_token_list(names))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    tokens = build.prompts(seed, model.config.vocab_size)
    expected = build.logits(theirs.eval(), tokens)
    for engine in ENGINES:
        judge(
            engine, f"gguf {family} by transformers", Runner(engine, path).logits(tokens), expected
        )


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_bit_of_blocks(kind, seed_for):
    """Any bytes, the scales too: NaN and infinities in the same places."""
    blocks = np.random.default_rng(seed_for("blocks", kind)).integers(
        0, 256, (64, 4 * BLOCKS[kind][1]), np.uint8
    )
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    found = dequantize(BlockTensor(blocks, kind), rows=slice(None), dtype=np.dtype(np.float32))
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert (same | (np.isnan(found) & np.isnan(expected))).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_what_the_package_quantises(kind, seed_for):
    values = np.random.default_rng(seed_for("quantise", kind)).standard_normal((8, 96), np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    found = dequantize(BlockTensor(blocks, kind), rows=slice(None), dtype=np.dtype(np.float32))
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_the_container_as_the_package_reads_it(seed_for, tmp_path):
    seed = seed_for("container")
    path, add = tmp_path / "m.gguf", gguf_files.byte_level_tokenizer(DEMO, pre="qwen2", size=704)
    config = Qwen3Config(**build.SMALL | {"vocab_size": 704})
    model = random_model(Qwen3ForCausalLM, config, seed)
    gguf_files.write_gguf(path, model, "Q5_0", tokenizer=add)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert fields.keys() == ours.metadata.keys()
    for name, field in fields.items():
        value = ours.metadata[name]
        assert (ours.array(name) if isinstance(value, Array) else value) == field.contents()
    for tensor in theirs.tensors:
        found = ours.read(tensor.name)
        assert found.shape == tuple(int(one) for one in reversed(tensor.shape))
        octets = found.blocks if isinstance(found, BlockTensor) else found
        assert octets.tobytes() == np.asarray(tensor.data).tobytes()
    assert [tensor.name for tensor in theirs.tensors] == list(ours.entries)
