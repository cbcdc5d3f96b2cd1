"""Captures of a tiny model of mlx.nn: what is kept, what stays as it was. By hand and by law."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from lockstep import parity
from lockstep.reference.checkpoint.errors import InputError

WIDTH, VOCABULARY = 4, 11
PROMPT = mx.array([[1, 2, 3]])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def __call__(self, x: mx.array) -> mx.array:
        out = self.mlp(x)
        out += x  # puts the sum behind the name of what `mlp` handed out
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = [Layer() for _ in range(3)]

    def __call__(self, inputs: mx.array) -> mx.array:
        x = self.embed_tokens(inputs)
        for layer in self.layers:
            x = layer(x)
        return self.embed_tokens.as_linear(x)


@pytest.fixture
def model() -> Model:
    mx.random.seed(3)
    return Model()


def classes(model: Model) -> list[type]:
    return [type(part) for _, part in model.named_modules()]


def test_what_modules_hand_out_by_hand(model):
    with parity.capture.mlx(model) as dump:
        model(PROMPT)
    x = np.array(model.embed_tokens.weight)[[1, 2, 3]]
    first = model.layers[0].mlp
    product = x @ np.array(first.weight).T + np.array(first.bias)
    np.testing.assert_array_equal(dump.read("embed_tokens")[0], x)
    np.testing.assert_allclose(dump.read("layers.0.mlp")[0], product, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dump.read("layers.0")[0], product + x, rtol=1e-5, atol=1e-6)
    assert [*dump.shapes] == [
        "embed_tokens",
        *(f"layers.{n}{part}" for n in range(3) for part in (".mlp", "")),
        "logits",
    ]
    assert (dump.tokens, dump.about["dtype"], dump.notes) == ([1, 2, 3], "float32", [])
    assert dump.nbytes == 4 * (7 * 3 * WIDTH + 3 * VOCABULARY) and dump.seconds > 0


def test_the_result_keeps_its_bits_and_every_module_its_class(model):
    before, own = np.array(model(PROMPT)), classes(model)
    with parity.capture.mlx(model):
        during = model(PROMPT)
        assert classes(model) != own and isinstance(model.layers[0].mlp, nn.Linear)
    assert np.array(during).tobytes() == before.tobytes() == np.array(model(PROMPT)).tobytes()
    assert classes(model) == own


def test_classes_come_back_after_an_exception(model):
    own = classes(model)
    with pytest.raises(ZeroDivisionError), parity.capture.mlx(model):
        model(PROMPT)
        raise ZeroDivisionError
    assert classes(model) == own


def test_another_model_of_the_same_classes_is_not_seen(model):
    with parity.capture.mlx(model) as dump:
        model(PROMPT)
        Model()(mx.array([[5]]))
    assert not [name for name in dump.shapes if "/" in name]


def test_nothing_is_computed_inside_of_the_block():
    """By law: what is computed takes memory, and inside of the block none is taken."""
    wide = nn.Linear(WIDTH, 1 << 20)
    mx.eval(wide.parameters())
    x = mx.ones((1, WIDTH))
    mx.eval(x)
    with parity.capture.mlx(wide) as dump:
        before = mx.get_active_memory()
        out = wide(x)
        inside, names = mx.get_active_memory() - before, [*dump.shapes]
    assert (inside, names) == (0, [])
    assert mx.get_active_memory() - before >= out.nbytes and [*dump.shapes] == ["output"]


def test_steps_continue_and_another_prompt_does_not(model):
    with parity.capture.mlx(model) as dump:
        for ids in ([[1, 2, 3]], [[4]], [[5]]):
            model(mx.array(ids))
    assert (dump.tokens, dump.decoded) == ([1, 2, 3], [4, 5])
    assert dump.shapes["step.2/layers.1.mlp"] == (1, 1, WIDTH)
    with parity.capture.mlx(model) as dump:
        model(PROMPT)
        model(mx.array([[7, 8]]))
    assert dump.decoded == [] and "pass.2/logits" in dump.shapes and "pass 2" in dump.notes[0]


BATCH = mx.array([[1, 2, 9], [3, 4, 5]])


@pytest.mark.parametrize(
    ("lengths", "rows"), [(None, [[1, 2, 9], [3, 4, 5]]), ([2, 3], [[1, 2], [3, 4, 5]])]
)
def test_a_batch_says_its_rows(model, lengths, rows):
    with parity.capture.mlx(model, lengths=lengths) as dump:
        model(BATCH)
        model(mx.array([[6], [7]]))
    assert (dump.tokens, dump.batch, dump.padding) == (None, rows, "right")
    assert dump.rows("batch_decoded") == [[6], [7]] and dump.notes == []


@pytest.mark.parametrize("lengths", [[2], [0, 3], [4, 3]])
def test_lengths_that_are_not_those_of_the_rows_are_refused(model, lengths):
    refused = pytest.raises(InputError, match=r"but should be 2 of 1\.\.3")
    with refused, parity.capture.mlx(model, lengths=lengths):
        model(BATCH)


class Held:
    """A cache as mlx-lm's are: what is in the buffer up to `offset`, the rest is room."""

    def __init__(self, left_padding=None):
        self.keys = self.values = None
        self.offset = 0
        if left_padding is not None:
            self.left_padding = mx.array(left_padding)

    def put(self, x):
        first = mx.zeros((1, 2, 8, 3)) if self.keys is None else self.keys
        first[:, :, self.offset : self.offset + x.shape[2]] = x
        self.keys, self.values, self.offset = first, 2 * first, self.offset + x.shape[2]


class Attention(nn.Module):
    def __call__(self, x, cache):
        cache.put(mx.ones((1, 2, x.shape[1], 3)) * (1 + cache.offset))
        return x


class Caching(Model):
    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.self_attn = Attention()

    def __call__(self, inputs, cache):
        x = self.embed_tokens(inputs)
        for layer, one in zip(self.layers, cache, strict=True):
            x = layer(layer.self_attn(x, one))
        return self.embed_tokens.as_linear(x)


def test_what_caches_hold_is_kept_on_request():
    model, caches = Caching(), [Held() for _ in range(3)]
    with parity.capture.mlx(model, caches=True) as dump:
        model(PROMPT, cache=caches)
        model(mx.array([[4]]), cache=caches)
    name = "layers.1.self_attn.cached_"
    assert dump.read(f"{name}keys")[0, 1, :, 2].tolist() == [1, 1, 1]
    assert dump.read(f"step.1/{name}values")[0, 0, :, 0].tolist() == [2, 2, 2, 8]
    with parity.capture.mlx(model) as dump:
        model(PROMPT, cache=[Held() for _ in range(3)])
    assert not [one for one in dump.shapes if "cached" in one]


def test_what_is_filled_up_on_the_left_is_what_batch_caches_say():
    model = Caching()
    with parity.capture.mlx(model) as dump:
        model(BATCH, cache=[Held([1, 0]) for _ in range(3)])
    assert (dump.batch, dump.padding) == ([[2, 9], [3, 4, 5]], "left")


def test_bfloat16_is_kept_as_it_is(model):
    model.set_dtype(mx.bfloat16)
    with parity.capture.mlx(model) as dump:
        logits = model(PROMPT)
    assert dump.about["dtype"] == dump.read("logits").dtype.name == "bfloat16"
    np.testing.assert_array_equal(
        dump.read("logits").astype(np.float32), np.array(logits.astype(mx.float32))
    )


def same_layers(model: Model) -> None:
    class Same(nn.Module):
        def __call__(self, x: mx.array) -> mx.array:
            return mx.zeros_like(x)

    model.layers = [Same() for _ in range(3)]


def recorded_once(model: Model) -> None:
    """Layers that hand out what they did the first time, as replayed graphs do."""
    kept: dict[Any, mx.array] = {}

    class Once(nn.Module):
        def __call__(self, x: mx.array) -> mx.array:
            return kept.setdefault((id(self), x.shape), x + 0)

    model.layers = [Once() for _ in range(3)]


def nothing(model: Model) -> None:
    pass


def run(model: Model) -> None:
    for ids in ([[1, 2, 3]], [[4]], [[5]]):
        model(mx.array(ids))


NONSENSE: dict[str, tuple[Callable[[Model], None], Callable[[Model], None], str]] = {
    "nothing ran": (nothing, nothing, "nothing was captured"),
    "all layers the same": (
        same_layers,
        lambda model: model(PROMPT),
        "all .* layers handed out the same values",
    ),
    "the same in every step": (recorded_once, run, "no layer's values changed in 2 steps"),
    "a compiled model": (nothing, lambda model: mx.eval(mx.compile(model)(PROMPT)), "mx.compile"),
}


@pytest.mark.parametrize("at", [None, "0"])
@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_refused(case, at, model):
    spoil, call, words = NONSENSE[case]
    spoil(model)
    with pytest.raises(InputError, match=words), parity.capture.mlx(model, at=at):
        call(model)


def test_one_tensor_that_never_changes_is_told(model):
    class Still(nn.Module):
        def __call__(self, x: mx.array) -> mx.array:
            return mx.zeros_like(x)

    model.layers[1].mlp = Still()
    with parity.capture.mlx(model) as dump:
        run(model)
    note = "1 tensors are the same in all 2 steps, such as step.1/layers.1.mlp"
    assert dump.notes == [note]


def test_a_module_that_runs_twice_is_kept_apart_and_one_that_does_not_run_is_told(model):
    model.layers[1] = model.layers[0]
    model.unused = nn.Linear(2, 2)
    with parity.capture.mlx(model) as dump:
        model(PROMPT)
    assert {"layers.0@1", "layers.0@2"} <= dump.shapes.keys() or "layers.1@1" in dump.shapes
    assert any("not called, such as unused" in note for note in dump.notes)


def test_what_a_model_cannot_compute_is_its_own_error(model, tmp_path):
    """A weight whose file was cut off after it was opened, before it was read."""
    file = tmp_path / "w.safetensors"
    mx.save_safetensors(str(file), {"weight": mx.ones((WIDTH, WIDTH))})
    model.layers[1].mlp.weight = mx.load(str(file))["weight"]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(RuntimeError, match="read"), parity.capture.mlx(model):
        model(PROMPT)
    assert type(model.layers[1].mlp) is nn.Linear


def test_some_tokens_are_kept_and_the_rest_is_not(model):
    """By loop: rows of the whole capture; steps are whole."""
    ids, rows = mx.array([[1, 2, 3, 4, 5]]), [0, 3, 4]
    dumps = []
    for at in (None, "0,last:2"):
        with parity.capture.mlx(model, at=at) as dump:
            logits = model(ids)
            model(mx.array([[6]]))
        dumps.append((dump, np.array(logits)))
    (whole, before), (some, after) = dumps
    assert before.tobytes() == after.tobytes()
    assert some.about["positions"] == "[0, 3, 4]" and some.tokens == [1, 2, 3, 4, 5]
    assert [*some.shapes] == [*whole.shapes]
    for tap in whole.shapes:
        every = whole.read(tap)
        every = every if tap.startswith("step.1/") else every[:, rows]
        np.testing.assert_array_equal(some.read(tap), every)


def test_what_is_not_kept_of_a_prompt_takes_no_memory(model):
    """By MLX's own count: outputs of 20,000 tokens are megabytes, and of one they are not."""
    long, most = mx.array([[token % VOCABULARY for token in range(20_000)]]), []
    mx.eval(long, model.parameters())
    for at in (None, "last:1"):
        with parity.capture.mlx(model, at=at):
            before = mx.get_active_memory()
            mx.eval(model(long))
            most.append(mx.get_active_memory() - before)
    assert most[0] > 20_000 * 7 * WIDTH * 4 > 100 * most[1]


def test_some_tokens_of_a_batch_are_refused(model):
    with pytest.raises(InputError, match="needs one prompt"), parity.capture.mlx(model, at="0"):
        model(mx.array([[1, 2], [3, 4]]))
    for at, words in (("3", "^at: 3, but the prompt"), ("x", "^at: 'x', but should be last:8")):
        with pytest.raises(InputError, match=words), parity.capture.mlx(model, at=at):
            model(PROMPT)
