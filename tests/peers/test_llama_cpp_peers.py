"""llama.cpp itself on GGUF files: a third witness, by another team, in another language.

How near it can be follows from how it computes; each bound below has its reason beside it. Errors
are the greatest difference of any logit over the standard deviation of the logits.
"""

from pathlib import Path

import gguf
import numpy as np
import pytest
from transformers import (
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
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.gguf.file import GgufFile
from lockstep.reference.ops import dequantize
from tests.peers.test_gguf_peers import ROPES, SIZES, WIDE, random_model
from tests.witnesses import build, build_gpt2, build_qwen3_moe, gguf_files, llama_cpp_runs
from tests.witnesses.judge import BAR, error, same_tokens
from tests.witnesses.runners import ENGINES, Runner

# Two engines in float32 differ by the order of their sums alone: `judge` holds them to the bar that
# transformers is held to, 5e-5. At most 1.4e-5 was seen.
#
# GPT-2: ggml looks GELU up in a table for every float16 there is, so its inputs and outputs are
# rounded to 11 bits. 7e-4 to 1e-3 was seen.
TABLE_OF_GELU = 1e-2
# Matrices in half precision: ggml rounds what they are multiplied with to the same type, 11 or 8
# bits. At most 7e-3 and 6.5e-2 was seen.
HALF = {"F16": 5e-2, "BF16": 0.4}
# Packed matrices: what they are multiplied with is rounded to 8 bits, 32 or 256 of it to a scale.
# That is no judge of a kernel; it would show rows in the wrong order, which are off by 4. The mean
# of the errors is what repeats, 0.015 to 0.041 was seen; the greatest goes to 0.31.
PACKED_MEAN, PACKED = 0.12, 1.2

# llama.cpp takes Qwen2's heads to share the hidden width.
EQUAL = {"head_dim": SIZES["hidden_size"] // SIZES["num_attention_heads"]}


def llama(rope: str, biased: bool):
    switches = {"attention_bias": biased, "mlp_bias": biased, "tie_word_embeddings": biased}
    return LlamaForCausalLM, LlamaConfig(**SIZES | switches | {"rope_parameters": ROPES[rope]})


def mistral():
    sizes = SIZES | {"rope_parameters": ROPES["plain"], "sliding_window": None}
    return MistralForCausalLM, MistralConfig(**sizes)


def qwen2(rope: str, tied: bool):
    sizes = SIZES | EQUAL | {"rope_parameters": ROPES[rope], "tie_word_embeddings": tied}
    return Qwen2ForCausalLM, Qwen2Config(**sizes)


def qwen3(tied: bool, **width: int):
    sizes = build.SMALL | {"head_dim": 32, "tie_word_embeddings": tied} | width
    return Qwen3ForCausalLM, Qwen3Config(**sizes)


EXACT = {
    **{f"llama, {rope}": lambda rope=rope: llama(rope, False) for rope in ROPES},
    **{f"llama, {rope}, biased": lambda rope=rope: llama(rope, True) for rope in ROPES},
    "mistral": mistral,
    **{f"qwen2, {rope}": lambda rope=rope: qwen2(rope, False) for rope in ("plain", "yarn")},
    "qwen2, linear, tied": lambda: qwen2("linear", True),
    "qwen3": lambda: qwen3(False),
    "qwen3, tied": lambda: qwen3(True),
}


def without_tokenizer(model):
    """Return what tells llama.cpp that there is none, and how many tokens there are."""

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("none")
        if model.config.model_type == "gpt2":  # for the others `write_gguf` says it
            writer.add_vocab_size(model.config.vocab_size)

    return add


def written(path: Path, model, kinds, seed: int) -> Path:
    """Write a model, and give it the values of the file."""
    add = without_tokenizer(model)
    gguf_files.loaded(model, gguf_files.write_gguf(path, model, kinds, tokenizer=add, seed=seed))
    return path


def hold(path: Path, other: Path, vocabulary: int, seed: int, row: str, judge) -> None:
    """Hold every engine on one file against llama.cpp on the other: logits, cache, greedy text."""
    tokens = build.prompts(seed, vocabulary)
    expected = llama_cpp_runs.logits(other, tokens)
    prompts = (tokens[0], tokens[1, : build.SHORT])
    ids, seen = llama_cpp_runs.greedy(other, prompts, build.GREEDY)
    for engine in ENGINES:
        runner = Runner(engine, path)
        judge(engine, f"llama.cpp, {row}", runner.logits(tokens), expected)
        cached = runner.chunked(tokens, [3, 1, 35, 1])
        judge(engine, f"llama.cpp, {row}, cached", cached, expected)
        lengths = np.array([len(prompt) for prompt in prompts])
        same_tokens(runner.greedy(tokens, build.GREEDY, lengths)[0], ids, seen)


@pytest.mark.parametrize("case", EXACT)
def test_float32(case, seed_for, judge, tmp_path):
    """The prompt is longer than the original length of the stretched ones."""
    seed = seed_for("llama.cpp", case)
    model = random_model(*EXACT[case](), seed)
    path = written(tmp_path / "m.gguf", model, "F32", seed)
    hold(path, path, model.config.vocab_size, seed, case, judge)


def test_experts(seed_for, judge, tmp_path):
    seed = seed_for("llama.cpp, experts")
    base = build_qwen3_moe.PACKABLE | {"mlp_only_layers": []}
    tokens, path = build.prompts(seed, base["vocab_size"]), tmp_path / "m.gguf"
    for attempt in range(40):
        model = build_qwen3_moe.random_model(seed + attempt, **base)
        if build_qwen3_moe.settled(model, tokens):
            break
    written(path, model, "F32", seed)
    hold(path, path, model.config.vocab_size, seed, "qwen3_moe", judge)


@pytest.mark.parametrize("kind", BLOCKS)
def test_packed_files_mean_what_llama_cpp_takes_them_for(kind, seed_for, judge, tmp_path):
    """It runs the values of the blocks in float32, where it rounds no activation."""
    seed = seed_for("llama.cpp, packed", kind)
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 64}
    model = random_model(*qwen3(False, **(wide if kind in WIDE else {})), seed)
    path = written(tmp_path / "packed.gguf", model, kind, seed)
    other = written(tmp_path / "values.gguf", model, "F32", seed)
    hold(path, other, model.config.vocab_size, seed, f"values of {kind}", judge)


@pytest.mark.parametrize("kind", [*HALF, *BLOCKS])
def test_what_it_rounds_before_a_product(kind, seed_for, tmp_path):
    """Here llama.cpp is the one that is off: transformers is the truth, and we are near it."""
    seed = seed_for("llama.cpp, rounded", kind)
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 64}
    model = random_model(*qwen3(False, **(wide if kind in WIDE else {})), seed)
    path = written(tmp_path / "m.gguf", model, kind, seed)
    tokens = build.prompts(seed, model.config.vocab_size)
    truth, theirs = build.logits(model, tokens), llama_cpp_runs.logits(path, tokens)
    assert 10 * BAR < error(theirs, truth) < HALF.get(kind, PACKED)
    for engine in ENGINES:
        ours = Runner(engine, path).logits(tokens)
        assert error(ours, truth) <= BAR
        assert error(ours, theirs) < HALF.get(kind, PACKED)
        mean = np.sqrt(np.square(ours - theirs).mean()) / theirs.std()
        assert mean < PACKED_MEAN


def test_its_table_of_gelu(seed_for, tied, tmp_path):
    """GPT-2 in float32: it is 20 times further from transformers than our bar."""
    seed = seed_for("llama.cpp, gpt2", tied)
    sizes = build_gpt2.SMALL | {"n_embd": 96, "tie_word_embeddings": tied}
    model = build_gpt2.random_model(seed, **sizes)
    path = written(tmp_path / "m.gguf", model, "F32", seed)
    tokens = build.prompts(seed, model.config.vocab_size)
    truth, theirs = build.logits(model, tokens), llama_cpp_runs.logits(path, tokens)
    assert 2 * BAR < error(theirs, truth) < TABLE_OF_GELU
    for engine in ENGINES:
        ours = Runner(engine, path).logits(tokens)
        assert error(ours, truth) <= BAR
        assert error(ours, theirs) < TABLE_OF_GELU


def test_its_usual_cache(seed_for, tmp_path):
    """Unless it is told otherwise it keeps keys and values in float16."""
    seed = seed_for("llama.cpp, cache")
    model = random_model(*qwen3(False), seed)
    path = written(tmp_path / "m.gguf", model, "F32", seed)
    tokens = build.prompts(seed, model.config.vocab_size)
    truth = build.logits(model, tokens)
    assert error(llama_cpp_runs.logits(path, tokens), truth) <= BAR
    assert error(llama_cpp_runs.logits(path, tokens, cache="float16"), truth) > 10 * BAR


def test_a_window_that_it_does_not_look_at(seed_for, tmp_path):
    """Mistral's: a file may name it, llama.cpp's `llama` has no windows. We refuse the key."""
    seed, window = seed_for("llama.cpp, window"), 8
    kind, config = mistral()
    model = random_model(kind, config, seed)
    path, add = tmp_path / "m.gguf", without_tokenizer(model)

    def with_window(writer: gguf.GGUFWriter) -> None:
        add(writer)
        writer.add_sliding_window(window)

    gguf_files.write_gguf(path, model, "F32", tokenizer=with_window)
    tokens = build.prompts(seed, config.vocab_size)
    theirs = llama_cpp_runs.logits(path, tokens)
    assert error(theirs, build.logits(model, tokens)) <= BAR
    slides = kind(MistralConfig(**config.to_dict() | {"sliding_window": window})).eval()
    slides.load_state_dict(model.state_dict())
    assert error(theirs, build.logits(slides, tokens)) > 0.5
    with pytest.raises(InputError, match=r"unknown metadata 'llama\.attention\.sliding_window'"):
        Runner("reference", path)


@pytest.mark.parametrize("kind", ["F16", "BF16", *BLOCKS])
def test_every_bit_of_blocks(kind, seed_for, tmp_path):
    """ggml's own functions on any bytes: NaN and infinities in the same places."""
    rng = np.random.default_rng(seed_for("ggml", kind))
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    raw = rng.integers(0, 256, (256, 4 * size), np.uint8)
    expected = llama_cpp_runs.dequantized(raw, kind)
    if kind in BLOCKS:
        packed = BlockTensor(raw, kind)
        found = dequantize(packed, rows=slice(None), dtype=np.dtype(np.float32))
    else:
        found = read_from_a_file(tmp_path / "m.gguf", raw, kind)
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert (same | (np.isnan(found) & np.isnan(expected))).all()


def read_from_a_file(path: Path, raw: np.ndarray, kind: str) -> np.ndarray:
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_tensor("x", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path).read("x").astype(np.float32)


REFUSED = {
    "heads that do not share the width": lambda: (
        Qwen2ForCausalLM,
        Qwen2Config(**SIZES | {"rope_parameters": ROPES["plain"]}),
    ),
    "a bias of the output projection": lambda: (
        Qwen3ForCausalLM,
        Qwen3Config(**build.SMALL | {"head_dim": 32, "attention_bias": True}),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_has_no_place_for(case, seed_for, judge, tmp_path):
    """Qwen2 with a width of heads of its own, Qwen3 with biases: transformers and we run both."""
    seed = seed_for("llama.cpp, refused", case)
    model = random_model(*REFUSED[case](), seed)
    path = written(tmp_path / "m.gguf", model, "F32", seed)
    with pytest.raises(ValueError, match="Failed to load model"):
        llama_cpp_runs.model(path)
    tokens = build.prompts(seed, model.config.vocab_size)
    for engine in ENGINES:
        found = Runner(engine, path).logits(tokens)
        judge(engine, f"not in llama.cpp: {case}", found, build.logits(model, tokens))
