"""GGUF files of Gemma 4, as llama.cpp's converter writes them, against transformers in float32."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.peers.test_gguf_peers import WIDE, hold
from tests.peers.test_gguf_tokenizer_peers import HARD, write_tokenizer
from tests.witnesses import build, build_gemma4, gguf_files, gguf_gemma4
from tests.witnesses.runners import ENGINES, Runner

# Every matrix can be packed in blocks of 32; heads of two widths, and a window of 9.
SIZES = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "global_head_dim": 32}
LARGE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 16}
# Tied, a wide model would repeat itself.
LARGE |= {"tie_word_embeddings": False}
# A layer's own input may be nearly shut for a token, which blows up the noise of either side.
STEADY = {"rms_norm_eps": 0.1}
# Drawn blocks have a mean of their own: what is told apart is small beside it. Without a large eps
# the noise is up to 4e-5, in transformers as well.
CALM = {"rms_norm_eps": 1.0}
BUILDS: dict[str, dict[str, Any]] = {
    "31B": build_gemma4.DENSE,
    "26B-A4B": build_gemma4.SPARSE | {"moe_intermediate_size": 32},
    "E2B": build_gemma4.SMALL_BUILD | {"hidden_size_per_layer_input": 64} | STEADY,
    "E4B": build_gemma4.SMALL_BUILD
    | {"hidden_size_per_layer_input": 64, "use_double_wide_mlp": False}
    | STEADY,
}
MIXTURE = ("Q8_0", "Q4_K", "Q6_K", "F16", "Q5_K", "BF16", "Q4_0", "Q3_K", "F32")
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "MXFP4", "Q4_K", "Q6_K", "mixed")


def sizes_of(which: str, kind: str) -> dict[str, Any]:
    config = BUILDS[which] | SIZES
    if kind in (*WIDE, "mixed"):
        config |= LARGE
        for key in ("moe_intermediate_size", "hidden_size_per_layer_input"):
            config |= {key: 256} if config.get(key) else {}
    return config | (CALM if kind in (*gguf_files.READ_ONLY, "mixed") else {})


def kinds(kind: str):
    """Say for each matrix how it is stored; routers are plain.

    Blocks that are drawn have a mean of their own. In the head one token would always be the best.
    """

    def of(name: str) -> str:
        drawn = MIXTURE[sum(name.encode()) % len(MIXTURE)] if kind == "mixed" else kind
        if name in ("model.embed_tokens.weight", "lm_head.weight") and drawn in WIDE:
            return "Q8_0"
        return gguf_gemma4.plain_router(name) or drawn

    return of


def written(path: Path, which: str, kind: str, seed: int, **options: Any) -> Any:
    """Write a model that is far from ties; return it with the values of the file."""
    config = sizes_of(which, kind)
    tokens = build.prompts(seed, config["vocab_size"])
    for attempt in range(200):
        model = build_gemma4.random_model(seed + attempt, **config)
        for old in path.parent.glob("*.gguf"):
            old.unlink()
        held = gguf_files.write_gguf(path, model, kinds(kind), seed=seed, **options)
        gguf_files.loaded(model, held)
        if build_gemma4.settled(model, tokens):
            return model
    raise RuntimeError(f"no seed from {seed} on is far from a tie")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", BUILDS)
def test_every_build(which, kind, seed_for, judge, tmp_path):
    """Prompts are longer than the window."""
    seed = seed_for("gguf gemma4", which, kind)
    path = tmp_path / "m.gguf"
    model = written(path, which, kind, seed)
    hold(model, path, seed, f"gguf gemma4 {which}, {kind}", judge)
    stored = open_checkpoint(path).stored("model.layers.0.mlp.up_proj.weight").dtype
    assert stored == kinds(kind)("model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K"])
def test_experts_in_two_stacks(kind, seed_for, judge, tmp_path):
    """llama.cpp reads them so too, from other converters."""
    seed = seed_for("gguf gemma4, two stacks", kind)
    path = tmp_path / "m.gguf"
    model = written(path, "26B-A4B", kind, seed, fused=False)
    hold(model, path, seed, f"gguf gemma4, two stacks, {kind}", judge)


@pytest.mark.parametrize("cap", [None, 7.0])
def test_other_configs(cap, seed_for, judge, tmp_path):
    """A cap of 0 is none; full layers with values; an untied head; all layers full."""
    seed = seed_for("gguf gemma4, others", cap)
    config = sizes_of("31B", "F16") | {"final_logit_softcapping": cap}
    config |= {"attention_k_eq_v": False, "tie_word_embeddings": False}
    config |= {"layer_types": ["full_attention"] * 3} if cap else {}
    model, path = build_gemma4.random_model(seed, **config), tmp_path / "m.gguf"

    def no_cap(writer: gguf.GGUFWriter) -> None:
        if cap is None:
            writer.add_final_logit_softcapping(0.0)

    held = gguf_files.write_gguf(path, model, "F16", tokenizer=no_cap, seed=seed)
    hold(gguf_files.loaded(model, held), path, seed, "gguf gemma4, others", judge)


def test_keys_of_layers_without_keys_change_nothing(seed_for, tmp_path):
    """Published files carry them, and so do the GGUF files that are made of those."""
    seed = seed_for("gguf gemma4, carried")
    plain, carried = tmp_path / "plain", tmp_path / "carried"
    for folder in (plain, carried):
        folder.mkdir()

    def extra(writer: gguf.GGUFWriter) -> None:
        for name, rows in (("attn_k", 32), ("attn_v", 32)):
            writer.add_tensor(f"blk.2.{name}.weight", np.ones((rows, 64), np.float32))
        writer.add_tensor("blk.2.attn_k_norm.weight", np.ones(16, np.float32))

    written(plain / "m.gguf", "E2B", "F32", seed)
    written(carried / "m.gguf", "E2B", "F32", seed, tokenizer=extra)
    tokens = build.prompts(seed, BUILDS["E2B"]["vocab_size"])
    for engine in ENGINES:
        found = [Runner(engine, one / "m.gguf").exact(tokens) for one in (plain, carried)]
        assert found[0].tobytes() == found[1].tobytes()
    warnings = open_checkpoint(carried / "m.gguf").warnings
    assert len(warnings) == 1 and "take their keys and values from an earlier" in warnings[0]


@pytest.mark.parametrize("which", BUILDS)
@pytest.mark.parametrize("most", [1, 7])
def test_a_model_in_parts_is_the_same(which, most, seed_for, tmp_path):
    """By law: to the bit, however many files the package writes it into."""
    seed = seed_for("gguf gemma4, parts", which, most)
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder in (whole, parted):
        folder.mkdir()
    written(whole / "m.gguf", which, "Q8_0", seed)
    written(parted / "m.gguf", which, "Q8_0", seed, most=most)
    first = min(parted.iterdir())
    assert first.name.startswith("m-00001-of-") and len(list(parted.iterdir())) > 3
    tokens = build.prompts(seed, BUILDS[which]["vocab_size"])
    for engine in ENGINES:
        found = [Runner(engine, one).exact(tokens) for one in (whole / "m.gguf", first)]
        assert found[0].tobytes() == found[1].tobytes()


def test_a_whole_model(seed_for, judge, tmp_path):
    """The model and its tokenizer from one file, which knows where a turn ends."""
    seed, theirs = seed_for("gguf gemma4, whole"), gguf_gemma4.trained_tokenizer()
    size = theirs.get_vocab_size()
    config = sizes_of("E2B", "Q8_0") | {"vocab_size": size, "vocab_size_per_layer_input": size}
    model, path = build_gemma4.random_model(seed, **config), tmp_path / "m.gguf"
    add = gguf_gemma4.writes_tokenizer(theirs, size=size)
    held = gguf_files.write_gguf(path, model, "Q8_0", tokenizer=add, seed=seed)
    ours = load_tokenizer(path)
    ids = ours.encode("we'll be 12345 a test\n\n of it 日本")
    assert ids == theirs.encode("we'll be 12345 a test\n\n of it 日本").ids
    ends = {theirs.token_to_id(text) for text in ("<eos>", "<turn|>", "<|tool_response>")}
    assert open_checkpoint(path).generation.eos_token_ids == ends and None not in ends
    expected = build.logits(gguf_files.loaded(model, held), np.array([ids]))
    for engine in ENGINES:
        judge(engine, "gguf gemma4, whole", Runner(engine, path).logits(np.array([ids])), expected)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_tokenizer(adds_bos, tmp_path):
    """Early files say that no BOS is added, which is wrong: llama.cpp does not listen either."""
    theirs, path = gguf_gemma4.trained_tokenizer(), tmp_path / "m.gguf"
    size = theirs.get_vocab_size()
    add = gguf_gemma4.writes_tokenizer(theirs, size=size + 3, adds_bos=adds_bos)
    write_tokenizer(path, add)
    ours = load_tokenizer(path)
    for text in (*HARD, *gguf_gemma4.TEXTS):
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids and ids[0] == theirs.token_to_id("<bos>")
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.size == size
