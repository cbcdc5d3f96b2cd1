"""What a token needs, counted by hand; what is measured are the model's own bytes."""

import numpy as np
import pytest

from lockstep import fast
from lockstep.parity.bench import limits as module
from lockstep.parity.bench import reading, timing
from lockstep.parity.bench.limits import limits, product_rate
from lockstep.parity.bench.reading import as_words, read_rate, shared_out
from lockstep.parity.bench.work import Work, buffers, kept_bytes, work_of
from tests.witnesses.conftest import MODELS

EXPERTS, LLAMA = MODELS.parent / "qwen3_moe/separate", MODELS.parent / "llama"


def counted(path, backend="cpu"):
    model = fast.load(path, backend=backend)
    return work_of(model.checkpoint, model.weights), model


def test_a_tied_table_is_read_once_and_is_the_head(tied):
    """By law: every weight is read for a token, and the table is the head's."""
    work, model = counted(tied)
    stored = model.checkpoint.stored
    assert work.weight_bytes == sum(weight.nbytes for weight in model.weights.values())
    assert work.head == stored("model.embed_tokens.weight").shape
    assert len(work.heads) == model.config.num_hidden_layers


def test_a_table_beside_a_head_is_not_read(plain):
    work, model = counted(plain)
    table = model.weights["model.embed_tokens.weight"].nbytes
    assert work.weight_bytes == sum(one.nbytes for one in model.weights.values()) - table


def test_packed_weights_count_as_they_are_packed():
    """By hand: 4 bits a weight, and of 64 weights a scale and an offset in bfloat16."""
    work, model = counted(MODELS / "affine_4_64")
    weight = model.weights["model.layers.0.self_attn.q_proj.weight"]
    assert weight.packed.nbytes == 96 * 64 // 2
    assert weight.scales.nbytes + weight.biases.nbytes == 96 * 2 * 2
    read = {name: one for name, one in model.weights.items() if "embed_tokens" not in name}
    assert work.weight_bytes == sum(one.nbytes for one in buffers(read))


def test_experts_count_as_often_as_they_are_chosen():
    work, model = counted(EXPERTS)
    config, every = model.config, 0.0
    for name, weight in model.weights.items():
        if "embed" not in name or config.tie_word_embeddings:
            part = config.num_experts_per_tok / config.num_experts if ".experts." in name else 1
            every += part * sum(one.nbytes for one in buffers({name: weight}))
    assert config.num_experts_per_tok < config.num_experts
    assert work.weight_bytes == pytest.approx(every)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_keys_and_values_count_as_far_as_a_window_sees(dtype, size):
    """By hand: two layers of two heads of 10, and a window of nine tokens."""
    model = fast.load(LLAMA / "mistral_window", backend="cpu", dtype=dtype)
    of_token = 2 * 2 * 2 * 10 * size
    assert [kept_bytes(model, tokens) for tokens in (5, 40)] == [5 * of_token, 9 * of_token]


def test_operations_of_a_prompt():
    """By hand: three tokens through two matrices of 5 x 7, the last one through a head of 11 x 7;
    1 + 2 + 3 pairs, each twice 4 wide, in two layers."""
    work = Work(0.0, {(5, 7): 2.0}, (11, 7), (4, 4))
    assert work.operations(3) == 2 * 3 * 2 * 35 + 2 * 77 + 2 * 6 * 2 * 2 * 4


def test_buffers_lie_where_the_backend_has_them(tied):
    """By law: MLX's are seen in place, bfloat16 too."""
    for backend in ("cpu", "mlx"):
        _, model = counted(tied, backend)
        found = buffers(model.weights)
        assert sum(one.nbytes for one in found) == sum(w.nbytes for w in model.weights.values())
        again = buffers(model.weights)
        assert [one.ctypes.data for one in found] == [one.ctypes.data for one in again]


def test_every_word_is_read_by_one_thread():
    """By law, with a reader made by hand."""
    parts = shared_out([np.arange(10, dtype=np.uint64), np.arange(100, 103, dtype=np.uint64)], 3)
    found = sorted(int(word) for part in parts for one in part for word in one)
    assert found == [*range(10), *range(100, 103)]
    assert as_words(np.zeros((3, 5), np.uint8)).shape == (1,)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_the_reader_does_is_add(compiled):
    words = np.arange(1000, dtype=np.uint64)
    read = reading.reader() if compiled else np.add.reduce
    assert read(words) == 499500


def test_rates_by_a_clock_made_by_hand(monkeypatch):
    """By hand: every look at the clock is half a second later; 80 bytes in one of them, and
    products of 12 and of 24 operations in one each, the second kind twice."""
    now = iter(0.5 * step for step in range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    assert read_rate([np.zeros(10)]) == 160
    work = Work(8.0, {(2, 3): 1.0, (4, 3): 2.0}, (1, 1), ())
    assert product_rate(work, 1) == (12 + 2 * 24) / 1.5
    found = limits(work, 32, [np.zeros(10)], 2)
    assert (found.bytes_per_second, found.bytes_per_token, found.decode) == (160, 40, 4)
    assert found.operations_per_second == (24 + 2 * 48) / 1.5
    assert found.prefill == pytest.approx(2 / (work.operations(2) / found.operations_per_second))


def test_long_prompts_are_measured_on_a_part(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "product_rate", lambda work, tokens: asked.append(tokens) or 1.0)
    limits(Work(1.0, {(2, 3): 1.0}, (1, 1), ()), 0, [np.zeros(9)], 8192)
    assert asked == [1024]
