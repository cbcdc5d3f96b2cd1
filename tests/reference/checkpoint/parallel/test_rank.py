"""What a rank has of a checkpoint: parts that make up the whole, and no other bytes. By law."""

from dataclasses import fields

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep.reference.checkpoint import files, safetensors, spans
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.checkpoint.parallel.shares import check_ranks, share
from tests.reference.parallel.test_model import WITNESSES

DEALT = {
    "models/untied_float32": 2, "models/affine_4_64": 2, "gpt2/original": 3, "gpt2/packed": 2,
    "qwen3_moe/fused": 2, "qwen3_moe/separate": 2, "qwen3_moe/packed": 2, "gemma4/sparse": 2,
    "gguf/qwen3_mixed.gguf": 2, "gguf/llama_stretched.gguf": 2, "gguf/gemma4_26b.gguf": 2,
}  # fmt: skip
TOO_MANY = {
    ("models/tied_bfloat16", 4): "num_attention_heads=6",
    ("models/biased_float16", 2): "num_key_value_heads=3",
    ("models/affine_2_32", 2): "o_proj has 48 columns a rank in groups of 32",
    ("models/affine_mixed", 2): "down_proj has 128 columns in groups of 128",
    ("gpt2/original", 2): "num_attention_heads=3 \\(",
    ("gemma4/sparse", 3): "num_attention_heads=4, num_key_value_heads=2",
}


def arrays(tensor) -> dict[str, np.ndarray]:
    """Return the arrays of a tensor by name; dense ones have one."""
    if isinstance(tensor, np.ndarray):
        return {"": tensor}
    found = {one.name: getattr(tensor, one.name) for one in fields(tensor)}
    return {name: one for name, one in found.items() if isinstance(one, np.ndarray)}


def axis_of(name: str) -> int | None:
    """Return along which axis the parts of a tensor make up the whole, None if all have it all."""
    module, _, kind = name.rpartition(".")
    rule = rule_of(module) if kind in ("weight", "bias") else None
    if rule is None or (kind == "bias" and rule.axis == "columns"):
        return None
    return 0 if kind == "bias" else (-2 if rule.axis == "rows" else -1)


@pytest.mark.parametrize("name", DEALT)
def test_the_parts_of_all_ranks_make_up_the_whole(name):
    whole = open_checkpoint(WITNESSES / name)
    check_ranks(whole, DEALT[name])
    ranks = [RankCheckpoint(whole, rank, DEALT[name]) for rank in range(DEALT[name])]
    cut = 0
    for tensor in whole.names:
        axis, right = axis_of(tensor), arrays(whole.tensor(tensor))
        parts = [arrays(rank.tensor(tensor)) for rank in ranks]
        for key, value in right.items():
            each = [part[key] for part in parts]
            if axis is None or (".k_proj" in tensor and each[0].shape == value.shape):
                assert all(one.tobytes() == value.tobytes() for one in each)
                continue
            cut += 1
            if "c_attn" in tensor:  # three matrices, each dealt out by itself
                axis = 0
                each = [part for third in range(3) for one in each
                        for part in [np.split(one, 3, axis=0)[third]]]  # fmt: skip
            made = np.concatenate(each, axis=axis)
            assert made.shape == value.shape and made.tobytes() == value.tobytes(), tensor
    assert cut > 10


@pytest.mark.parametrize("name", ["qwen3_moe/fused", "qwen3_moe/packed", "gguf/gemma4_26b.gguf"])
def test_a_stack_is_read_a_matrix_at_a_time(name):
    whole = open_checkpoint(WITNESSES / name)
    for rank in (RankCheckpoint(whole, number, 2) for number in range(2)):
        stacks = [one for one in whole.names if len(whole.stored(one).shape) == 3]
        for tensor in stacks:
            stack, all_at_once = rank.stack(tensor), arrays(rank.tensor(tensor))
            assert stack[0].shape == stack.shape[1:]
            for key, value in arrays(stack[2]).items():
                assert value.tobytes() == all_at_once[key][2].tobytes()
        assert len(stacks) >= 3


def test_a_rank_reads_its_own_bytes_and_no_others(monkeypatch):
    """By hand: what is cut is read once by all together, what is whole once by each.

    Counted are the bytes that the system is asked for; what is less than a page between two pieces
    is not read over here.
    """
    monkeypatch.setattr(spans, "PAGE", 0)
    read = count_reads(monkeypatch)
    whole = open_checkpoint(WITNESSES / "models" / "untied_float32")
    read.clear()
    for tensor in whole.names:
        whole.tensor(tensor)
    everything = sum(read)
    kept = sum(whole.stored(one).nbytes for one in whole.names if axis_of(one) is None)
    for number in range(2):
        rank = RankCheckpoint(whole, number, 2)
        read.clear()
        for tensor in whole.names:
            rank.tensor(tensor)
        assert sum(read) == kept + (everything - kept) // 2
    assert kept < everything / 20


@pytest.mark.parametrize(
    ("columns", "block", "lengths"),
    [
        (2050, 1 << 20, [4100] * 8),
        (2048, 1 << 20, [3 * 8192 + 4096] * 2),
        (2048, 20000, [8192 + 4096] * 4),
    ],
)
def test_what_is_a_page_or_less_is_read_over(monkeypatch, tmp_path, columns, block, lengths):
    """By hand: the second half of 8 of 9 rows of float32. The first is a little more than a page,
    or a page: then rows are read together, four of them in one go, or two."""
    x = np.arange(9 * columns, dtype=np.float32).reshape(9, columns)
    save_file({"x": x}, tmp_path / "x.safetensors")
    monkeypatch.setattr(spans, "BLOCK", block)
    file, read = safetensors.SafetensorsFile(tmp_path / "x.safetensors"), count_reads(monkeypatch)
    half, part = columns // 2, ((columns // 2, columns),)
    found = file.read_part("x", ((0, 4), (5, 9)), part, columns)
    assert np.array_equal(found.view(np.float32), np.delete(x, 4, axis=0)[:, half:])
    assert read == lengths


def count_reads(monkeypatch) -> list[int]:
    """Return a list that gets the length of every piece that is read."""
    lengths: list[int] = []
    original = files.read_into

    def counted(descriptor, buffer, offset, path):
        lengths.append(len(buffer))
        original(descriptor, buffer, offset, path)

    for module in (spans, safetensors):
        monkeypatch.setattr(module, "read_into", counted)
    return lengths


@pytest.mark.parametrize(("name", "ranks"), TOO_MANY)
def test_what_does_not_divide_is_listed(name, ranks):
    what = f"cannot be cut for {ranks} ranks: .*{TOO_MANY[name, ranks]}"
    with pytest.raises(InputError, match=what):
        check_ranks(open_checkpoint(WITNESSES / name), ranks)


def test_shares_follow_each_other_and_few_heads_have_several_ranks():
    """By hand."""
    assert [share(8, rank, 4) for rank in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert [share(5, rank, 2) for rank in range(2)] == [(0, 2), (2, 5)]
    assert [share(2, rank, 4) for rank in range(4)] == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_a_config_has_the_heads_of_a_rank_and_is_else_the_same():
    """By hand: 4 heads of which 2 pairs share keys; full layers of Gemma 4 have one key head."""
    qwen = open_checkpoint(WITNESSES / "models" / "untied_float32")
    for ranks, heads, groups in ((2, 2, 1), (4, 1, 1)):
        config = RankCheckpoint(qwen, 0, ranks).config
        assert (config.num_attention_heads, config.num_key_value_heads) == (heads, groups)
        assert (config.head_dim, config.vocab_size) == (20, 120)
    gemma = RankCheckpoint(open_checkpoint(WITNESSES / "gemma4" / "sparse"), 1, 2).config
    assert [gemma.heads_of(layer) for layer in range(2)] == [(1, 12), (1, 16)]
    gpt2 = open_checkpoint(WITNESSES / "gpt2" / "original").config
    third = RankCheckpoint(open_checkpoint(WITNESSES / "gpt2" / "original"), 1, 3).config
    assert third.attention_scale(0) == gpt2.attention_scale(0)
