"""A whole folder: config against tensors, what is handed out, what is refused. By hand, and by
witness where the safetensors package wrote the tensors."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lockstep.reference.checkpoint.checkpoint import StoredFormat, open_checkpoint
from lockstep.reference.checkpoint.quantized import QuantizedTensor

Refuses = Callable[[Callable[[], object], str], str]
Q_PROJ = "model.layers.1.self_attn.q_proj"


def test_every_tensor_comes_out_as_it_went_in(model: Any) -> None:
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.architecture == "qwen3"
    assert checkpoint.path == model.path
    assert checkpoint.warnings == []
    assert checkpoint.generation.eos_token_ids == {2}
    assert set(checkpoint.names) == set(model.tensors)
    for name, expected in model.tensors.items():
        got = checkpoint.tensor(name)
        assert isinstance(got, np.ndarray) and got.dtype == ml_dtypes.bfloat16
        assert got.tobytes() == expected.tobytes()


def test_names_are_in_the_order_of_the_forward_pass(model: Any) -> None:
    names = open_checkpoint(model.save()).names
    assert names[0] == "model.embed_tokens.weight"
    assert names[1] == "model.layers.0.input_layernorm.weight"
    assert names[-2:] == ("model.norm.weight", "lm_head.weight")


def test_shards_give_the_same_tensors(model: Any) -> None:
    model.save_shards(3)
    checkpoint = open_checkpoint(model.path)
    assert checkpoint.warnings == []
    for name, expected in model.tensors.items():
        assert np.asarray(checkpoint.tensor(name)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_each_float_type_is_handed_out_as_stored(dtype: Any, model: Any) -> None:
    model.tensors = {name: array.astype(dtype) for name, array in model.tensors.items()}
    got = open_checkpoint(model.save()).tensor("model.norm.weight")
    assert isinstance(got, np.ndarray) and got.dtype == dtype


def test_a_model_may_mix_float_types(model: Any) -> None:
    model.tensors["model.norm.weight"] = model.tensors["model.norm.weight"].astype(np.float32)
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.stored("model.norm.weight").dtype == "F32"
    assert checkpoint.stored("lm_head.weight").dtype == "BF16"


def test_has_and_names_agree(model: Any) -> None:
    model.quantize_all(bits=4, group_size=32)
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.has(f"{Q_PROJ}.weight")
    assert not checkpoint.has(f"{Q_PROJ}.scales") and not checkpoint.has("nothing")
    for call in (checkpoint.tensor, checkpoint.stored):
        with pytest.raises(KeyError, match="no tensor 'nothing'"):
            call("nothing")
    with pytest.raises(KeyError, match="no tensor 'nothing'"):
        checkpoint.tensor_rows("nothing", 0, 1)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packed_tensors_come_out_as_they_went_in(bits: int, model: Any) -> None:
    model.quantize_all(bits=bits, group_size=32)
    model.config["quantization"] = {"bits": bits, "group_size": 32}
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.warnings == []
    for name in checkpoint.names:
        module = name.removesuffix(".weight")
        got = checkpoint.tensor(name)
        if f"{module}.scales" not in model.tensors:
            assert isinstance(got, np.ndarray)
            continue
        assert isinstance(got, QuantizedTensor)
        assert (got.bits, got.group_size, got.mode) == (bits, 32, "affine")
        assert got.shape == checkpoint.stored(name).shape
        for part, array in (("weight", got.packed), ("scales", got.scales), ("biases", got.biases)):
            expected = model.tensors[f"{module}.{part}"]
            assert array.dtype == expected.dtype and array.tobytes() == expected.tobytes()


def test_rows_of_plain_and_packed_tensors(model: Any) -> None:
    model.quantize("model.embed_tokens", bits=3, group_size=32)
    checkpoint = open_checkpoint(model.save())
    plain = checkpoint.tensor_rows("lm_head.weight", 5, 9)
    assert isinstance(plain, np.ndarray)
    assert plain.tobytes() == model.tensors["lm_head.weight"][5:9].tobytes()
    packed = checkpoint.tensor_rows("model.embed_tokens.weight", 5, 9)
    assert isinstance(packed, QuantizedTensor) and packed.shape == (4, 64)
    assert packed.packed.tolist() == model.tensors["model.embed_tokens.weight"][5:9].tolist()
    assert packed.scales.tolist() == model.tensors["model.embed_tokens.scales"][5:9].tolist()


# Apart, repeated, backwards, and beside each other.
IN_ANY_ORDER = ([7, 0, 7], [3, 4, 5, 6], [4, 5, 2, 2, 1, 0, 1, 2], [9])


@pytest.mark.parametrize("rows", IN_ANY_ORDER, ids=str)
def test_some_rows_in_any_order(rows: list[int], model: Any) -> None:
    """By law: those rows of the whole."""
    model.quantize("model.embed_tokens", bits=3, group_size=32)
    checkpoint = open_checkpoint(model.save())
    plain = checkpoint.tensor("lm_head.weight")
    np.testing.assert_array_equal(checkpoint.tensor_at("lm_head.weight", rows), plain[rows])
    packed = checkpoint.tensor("model.embed_tokens.weight")
    found = checkpoint.tensor_at("model.embed_tokens.weight", rows)
    for part in ("packed", "scales", "biases"):
        np.testing.assert_array_equal(getattr(found, part), getattr(packed, part)[rows])
    assert (found.bits, found.group_size) == (packed.bits, packed.group_size)


def test_rows_that_follow_one_another_are_read_at_once(model: Any) -> None:
    """By hand: all of a table is one span, in rows turned round each is its own."""
    checkpoint, spans = open_checkpoint(model.save()), []
    read_rows, rows = checkpoint._shards.read_rows, [*range(40)]
    checkpoint._shards.read_rows = lambda *span: spans.append(span) or read_rows(*span)
    found = checkpoint.tensor_at("lm_head.weight", rows)
    assert spans == [("lm_head.weight", 0, 40)]
    turned = checkpoint.tensor_at("lm_head.weight", rows[::-1])
    assert len(spans) == 41 and np.asarray(turned)[::-1].tobytes() == np.asarray(found).tobytes()


@pytest.mark.parametrize("rows", IN_ANY_ORDER, ids=str)
@pytest.mark.parametrize("name", ["qwen3_tied.gguf", "qwen3_mixed.gguf", "gpt2_turned.gguf"])
def test_some_rows_of_a_gguf_file(name: str, rows: list[int]) -> None:
    """By law: blocks or numbers, they are those rows of the whole."""
    checkpoint = open_checkpoint(Path(__file__).parents[2] / "witnesses" / "gguf" / name)
    table = checkpoint.names[0]
    whole, found = checkpoint.tensor(table), checkpoint.tensor_at(table, rows)
    parts = (found.blocks, whole.blocks) if hasattr(whole, "blocks") else (found, whole)
    np.testing.assert_array_equal(parts[0], parts[1][rows])


def test_stored_by_hand(model: Any) -> None:
    model.quantize(Q_PROJ, bits=6, group_size=32)
    checkpoint = open_checkpoint(model.save())
    plain = StoredFormat("BF16", (64,), None, None, None, None, 128)
    assert checkpoint.stored("model.norm.weight") == plain
    # 128 rows of 64 codes of 6 bits, and 2 scales and 2 offsets of 2 bytes in each row.
    nbytes = 128 * (64 * 6 // 8 + 2 * 2 * 2)
    packed = StoredFormat("U32", (128, 64), 6, 32, "affine", "F16", nbytes)
    assert checkpoint.stored(f"{Q_PROJ}.weight") == packed


def test_mixed_bits_that_are_declared(model: Any) -> None:
    for layer, bits in enumerate((3, 8)):
        model.quantize(f"model.layers.{layer}.mlp.up_proj", bits=bits, group_size=64)
    other = {"bits": 8, "group_size": 64, "mode": "affine"}
    section = {"bits": 3, "group_size": 64, "model.layers.1.mlp.up_proj": other}
    model.config |= {"quantization": section, "quantization_config": section}
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.warnings == []
    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(2)]
    assert [checkpoint.stored(name).bits for name in names] == [3, 8]


def test_mixed_bits_undeclared_are_inferred_with_a_warning(model: Any) -> None:
    plain = model.tensors[f"{Q_PROJ}.weight"]
    model.quantize_all(bits=4, group_size=32)
    model.tensors[f"{Q_PROJ}.weight"] = plain
    model.quantize(Q_PROJ, bits=8, group_size=64)
    model.config["quantization"] = {"bits": 4, "group_size": 32}
    checkpoint = open_checkpoint(model.save())
    stored = checkpoint.stored(f"{Q_PROJ}.weight")
    assert (stored.bits, stored.group_size) == (8, 64)
    assert checkpoint.warnings == [
        "quantisation of 1 modules inferred from their shapes: config.json declares 4 bits in "
        f"groups of 32 for '{Q_PROJ}', the shapes give 8 bits in groups of 64"
    ]
    # Declared under the other prefix, the same file is as its config says.
    other = Q_PROJ.replace("model.", "language_model.model.", 1)
    model.config["quantization"][other] = {"bits": 8, "group_size": 64}
    assert open_checkpoint(model.save()).warnings == []


def test_quantised_without_a_word_in_the_config(model: Any) -> None:
    model.quantize_all(bits=5, group_size=32)
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.stored("lm_head.weight").bits == 5
    assert "config.json declares no quantisation" in checkpoint.warnings[0]


def test_declared_plain_but_packed(model: Any) -> None:
    model.quantize_all(bits=4, group_size=32)
    model.config["quantization"] = {"bits": 4, "group_size": 32, Q_PROJ: False}
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.stored(f"{Q_PROJ}.weight").bits == 4
    assert f"config.json declares no quantisation for '{Q_PROJ}'" in checkpoint.warnings[0]


def test_declared_packed_but_plain(model: Any) -> None:
    model.config["quantization"] = {"bits": 4, "group_size": 32, Q_PROJ: {"bits": 6}}
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.stored(f"{Q_PROJ}.weight").bits is None
    assert checkpoint.warnings == [f"declared quantised, but stored plain: '{Q_PROJ}'"]


def test_declared_for_modules_that_are_not_here(model: Any) -> None:
    model.config["quantization"] = {"bits": 4, "group_size": 32, "vision.proj": {"bits": 8}}
    warnings = open_checkpoint(model.save()).warnings
    assert warnings == ["quantisation declared for modules that are not here: 'vision.proj'"]


def test_biases_of_the_layers(model: Any, refuses: Refuses) -> None:
    for layer in range(2):
        for name, rows in (("q_proj", 128), ("k_proj", 64), ("v_proj", 64), ("o_proj", 64)):
            bias = np.arange(rows, dtype=np.float16)
            model.tensors[f"model.layers.{layer}.self_attn.{name}.bias"] = bias
    refuses(lambda: open_checkpoint(model.save()), "unknown tensors 'model.layers.0.self_attn.")
    model.config["attention_bias"] = True
    # A packed matrix has offsets of its own, called `biases`.
    model.quantize(Q_PROJ, bits=4, group_size=32)
    got = open_checkpoint(model.save()).tensor(f"{Q_PROJ}.bias")
    assert isinstance(got, np.ndarray) and got.tolist() == list(range(128))


def test_a_tied_model(model: Any) -> None:
    model.config["tie_word_embeddings"] = True
    del model.tensors["lm_head.weight"]
    checkpoint = open_checkpoint(model.save())
    assert checkpoint.config.tie_word_embeddings and not checkpoint.has("lm_head.weight")
    assert checkpoint.warnings == []


def test_what_is_tolerated_is_mentioned(model: Any) -> None:
    model.config["tie_word_embeddings"] = True
    model.quantize("lm_head", bits=4, group_size=32)
    for layer in range(2):
        buffer = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        model.tensors[buffer] = np.ones(16, np.float32)
    checkpoint = open_checkpoint(model.save())
    assert not checkpoint.has("lm_head.weight")
    buffers = ", ".join(f"'model.layers.{n}.self_attn.rotary_emb.inv_freq'" for n in range(2))
    assert checkpoint.warnings == [
        "tensors not used, because the head is tied to the embedding: 'lm_head.biases', "
        "'lm_head.scales', 'lm_head.weight'",
        f"tensors not used, because they are computed from the config: {buffers}",
    ]


def drop(name: str) -> Callable[[Any], None]:
    return lambda model: model.tensors.pop(name)


def put(name: str, array: np.ndarray) -> Callable[[Any], None]:
    return lambda model: model.tensors.update({name: array})


def config(**changes: Any) -> Callable[[Any], None]:
    return lambda model: model.config.update(changes)


DISAGREE: dict[str, tuple[Callable[[Any], None], str]] = {
    "missing": (drop("model.norm.weight"), "config disagrees with weights: missing 'model.norm.w"),
    "C11 no head": (
        drop("lm_head.weight"),
        "missing 'lm_head.weight' (tie_word_embeddings=false in config.json)",
    ),
    "unknown": (put("extra", np.zeros(1, np.float32)), "unknown tensors 'extra'"),
    "scales of a norm": (
        put("model.norm.scales", np.zeros(1, np.float32)),
        "unknown tensors 'model.norm.scales'",
    ),
    "fewer layers": (config(num_hidden_layers=1), "unknown tensors 'model.layers.1.i"),
    "more layers": (config(num_hidden_layers=3), "missing 'model.layers.2.input_layern"),
    "C04 hidden": (
        config(hidden_size=1_000_000),
        "'model.embed_tokens.weight' has shape [48, 64], config.json gives [48, 1000000]",
    ),
    "C11 vocab up": (config(vocab_size=49), "has shape [48, 64], config.json gives [49, 64]"),
    "C11 vocab down": (config(vocab_size=47), "has shape [48, 64], config.json gives [47, 64]"),
    "heads": (config(num_attention_heads=2), "has shape [128, 64], config.json gives [64, 64]"),
    "head_dim": (config(head_dim=16), "config disagrees with weights: "),
    "inner": (config(intermediate_size=64), "has shape [96, 64], config.json gives [64, 64]"),
    "transposed": (
        put("model.layers.0.mlp.down_proj.weight", np.zeros((96, 64), np.float32)),
        "'model.layers.0.mlp.down_proj.weight' has shape [96, 64], config.json gives [64, 96]",
    ),
    "integers": (
        put("model.norm.weight", np.zeros(64, np.int32)),
        "weight 'model.norm.weight' has dtype I32, F64, F32, F16, BF16 are read",
    ),
    "8-bit floats": (
        put("model.norm.weight", np.zeros(64, ml_dtypes.float8_e4m3fn)),
        "weight 'model.norm.weight' has dtype F8_E4M3",
    ),
    "codes without scales": (
        put(f"{Q_PROJ}.weight", np.zeros((128, 8), np.uint32)),
        f"'{Q_PROJ}.weight' has shape [128, 8], config.json gives [128, 64]",
    ),
    "foreign method": (
        config(quantization_config={"quant_method": "gptq"}),
        "quantisation method 'gptq' is not supported yet",
    ),
    "bad last token": (config(eos_token_id=48), "bad token id 48"),
    "unknown key": (config(new_thing=1), "unknown config key 'new_thing'"),
}


@pytest.mark.parametrize("case", DISAGREE)
def test_refused(case: str, model: Any, refuses: Refuses) -> None:
    spoil, core = DISAGREE[case]
    spoil(model)
    folder = model.save()
    refuses(lambda: open_checkpoint(folder), core)


def test_an_unknown_key_may_pass_on_request(model: Any) -> None:
    model.config["new_thing"] = 1
    folder = model.save()
    assert open_checkpoint(folder, ignore_config=["new_thing"]).config.hidden_size == 64
    # One text is one key, not its letters.
    assert open_checkpoint(folder, ignore_config="new_thing").config.hidden_size == 64


def test_missing_files(model: Any, refuses: Refuses) -> None:
    folder = model.save()
    (folder / "model.safetensors").unlink()
    refuses(lambda: open_checkpoint(folder), "no model.safetensors")
    (folder / "config.json").unlink()
    assert "config.json: " in refuses(lambda: open_checkpoint(folder), "no such file")


def test_a_missing_shard(model: Any, refuses: Refuses) -> None:
    model.save_shards(2)
    (model.path / "model-00002-of-00002.safetensors").unlink()
    core = "missing shard 'model-00002-of-00002.safetensors'"
    refuses(lambda: open_checkpoint(model.path), core)


def test_a_truncated_file(model: Any, refuses: Refuses) -> None:
    path = model.save() / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    refuses(lambda: open_checkpoint(model.path), "file truncated")


def test_a_config_that_is_a_link_out(model: Any, tmp_path: Path, refuses: Refuses) -> None:
    path = model.save() / "config.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    refuses(lambda: open_checkpoint(model.path), "symbolic link leads out of the model's folder")


def test_a_folder_of_the_hub_cache(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = model.save()
    root = tmp_path / "hub" / "models--org--name"
    for part in ("blobs", "refs", "snapshots/abc"):
        (root / part).mkdir(parents=True)
    (root / "refs" / "main").write_text("abc", encoding="utf-8")
    for name in ("config.json", "model.safetensors"):
        (files / name).rename(root / "blobs" / name[:1])
        (root / "snapshots" / "abc" / name).symlink_to(f"../../blobs/{name[:1]}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    checkpoint = open_checkpoint("org/name")
    assert checkpoint.path == root / "snapshots" / "abc"
    assert np.asarray(checkpoint.tensor("model.norm.weight")).shape == (64,)


def test_opening_reads_no_data(model: Any) -> None:
    # The embedding alone would take 2 GB; the file is sparse, so the disk does not hold them.
    model.config |= {"vocab_size": 1 << 24, "tie_word_embeddings": True}
    del model.tensors["lm_head.weight"], model.tensors["model.embed_tokens.weight"]
    folder = model.save()
    path = folder / "model.safetensors"
    small = path.read_bytes()
    length = int.from_bytes(small[:8], "little")
    data = small[8 + length :]
    size = (1 << 24) * 64 * 2
    span = f'"dtype":"BF16","shape":[{1 << 24},64],"data_offsets":[{len(data)},{len(data) + size}]'
    entry = f',"model.embed_tokens.weight":{{{span}}}}}'
    text = small[8 : 8 + length].rstrip(b" ")[:-1] + entry.encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    os.truncate(path, 8 + len(text) + len(data) + size)
    tracemalloc.start()
    checkpoint = open_checkpoint(folder)
    rows = checkpoint.tensor_rows("model.embed_tokens.weight", 1 << 23, (1 << 23) + 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(rows, np.ndarray) and not rows.any()
    assert checkpoint.stored("model.embed_tokens.weight").nbytes == size
    assert peak < 1 << 20
