"""Captures of mlx-lm: they change nothing, clean ones raise no alarm, bugs are named through them.

The truth is mlx-lm itself, run without a capture, and what was planted in it.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from lockstep import parity, reference
from tests.peers.test_capture_peers import MLX, MODELS
from tests.witnesses import build

ROOT = Path(__file__).parents[2]
TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 58, 32, 38, 46, 43]
IDS = mx.array([TOKENS])


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


def opened(name: str, folder: Path) -> tuple[Path, Any]:
    """Return a checkpoint and what mlx-lm makes of it."""
    folder = build.save(MODELS[name][0](), folder, dtype="float32")
    _, prepare = MLX[name]
    if prepare is not None:
        prepare(folder)
    build.write_tokenizer(folder)
    model, _ = mlx_lm.load(str(folder))
    return folder, model


def captured(model: Any, ids: mx.array = IDS) -> Any:
    with parity.capture.mlx(model) as dump:
        model(ids)
    return dump


# On a CPU, MLX has no experts in half precision.
HALF = [name for name in MLX if name not in ("qwen3_moe", "gemma4 26B-A4B")]
RUNS = (
    *((name, mx.float32) for name in MLX),
    *((name, mx.bfloat16) for name in HALF),
    *((name, mx.float16) for name in HALF),
)


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_a_clean_capture_changes_no_bit_and_raises_no_alarm(name, dtype, tmp_path):
    folder, model = opened(name, tmp_path / "model")
    model.set_dtype(dtype)
    before = model(IDS)
    kinds = [type(part) for _, part in model.named_modules()]
    with parity.capture.mlx(model) as dump:
        during = model(IDS)
    assert mx.array_equal(before.view(mx.uint8), during.view(mx.uint8))
    assert [type(part) for _, part in model.named_modules()] == kinds
    assert (dump.tokens, dump.about["dtype"]) == (TOKENS, str(dtype).rpartition(".")[2])
    found = parity.explain(reference.load(folder), dump)
    assert (found.verdict, found.faults, found.unexplained) == ("clean", [], [])
    assert found.compared > 15


def test_generation_makes_steps_as_without_a_capture(tmp_path):
    folder, model = opened("qwen3", tmp_path / "model")

    def generated() -> list[int]:
        cache = make_prompt_cache(model)
        steps = generate_step(mx.array(TOKENS), model, max_tokens=4, prompt_cache=cache)
        return [int(token) for token, _ in steps]

    before = generated()
    with parity.capture.mlx(model) as dump:
        during = generated()
    assert before == during
    # mlx-lm runs the last token of the prompt by itself, and one step ahead of what it yields.
    assert dump.tokens == TOKENS[:-1]
    assert dump.decoded[:4] == [TOKENS[-1], *during[:3]]
    truth = reference.load(folder).forward([TOKENS])
    np.testing.assert_allclose(dump.read("step.1/logits")[0, 0], truth[0, -1], atol=1e-4)


def other_base(layers: Any) -> None:
    for layer in layers:
        layer.self_attn.rope.base = 500000.0


def other_eps(layers: Any) -> None:
    for layer in layers:
        layer.input_layernorm.eps = layer.post_attention_layernorm.eps = 1e-8


def no_query_norm(layers: Any) -> None:
    for layer in layers:
        layer.self_attn.q_norm = nn.Identity()


def neighbouring_pairs(layers: Any) -> None:
    for layer in layers:
        layer.self_attn.rope.traditional = True


def unscaled(layers: Any) -> None:
    for layer in layers:
        layer.self_attn.scale = 1.0


def gate_for_up(layers: Any) -> None:
    for layer in layers:
        mlp = layer.mlp
        mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


def one_later(layers: Any) -> None:
    layers[:] = [*layers[1:], layers[0]]


# What is planted, and what may be named for it.
PLANTED: dict[str, tuple[str, Callable[[Any], None], set[str]]] = {
    "another base of rope": ("qwen3", other_base, {"rope-theta-default"}),
    "another epsilon": ("llama", other_eps, {"rms-eps-wrong"}),
    "no norm of queries": ("qwen3", no_query_norm, {"qk-norm-missing"}),
    "rope of neighbours": ("llama", neighbouring_pairs, {"rope-pairing-swapped"}),
    "scores not scaled": ("qwen3", unscaled, {"attn-scale-missing"}),
    "gate for up": ("qwen2", gate_for_up, {"swiglu-gate-up-swapped"}),
    "layers one later": ("llama", one_later, {"layers-swapped"}),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_named(bug, tmp_path):
    name, plant, ids = PLANTED[bug]
    folder, model = opened(name, tmp_path / "model")
    plant(model.model.layers)
    found = parity.explain(reference.load(folder), captured(model))
    assert found.verdict == "faults" and {one.id for one in found.faults} <= ids
    assert found.unexplained == []


def test_a_batch_with_its_caches_raises_no_alarm():
    """mlx-lm's batch cache says what fills rows up on their left; its slots are read too."""
    folder = Path(__file__).parents[2] / "parity/demo/checkpoint"
    model = mlx_lm.load(str(folder))[0]
    model.set_dtype(mx.float32)
    cache = [BatchKVCache([3, 0]) for _ in model.layers]
    with parity.capture.mlx(model, caches=True) as dump:
        model(mx.array([[0, 0, 0, 3, 14, 15], [26, 5, 35, 8, 9, 7]]), cache=cache)
        model(mx.array([[4], [6]]), cache=cache)
    assert (dump.batch, dump.padding) == ([[3, 14, 15], [26, 5, 35, 8, 9, 7]], "left")
    found = parity.explain(reference.load(folder), dump)
    assert (found.verdict, found.steps, found.conventions) == ("clean", 1, [])
    assert parity.diff(dump, dump, model=reference.load(folder)).verdict == "parity"


def test_the_example_of_the_page_is_true(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/parity/capture.md").read_text(encoding="utf-8").split("\n## MLX\n")[1]
    example = re.search(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert example is not None
    for part in ("tests", "parity"):
        (tmp_path / part).symlink_to(ROOT / part)
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    assert capsys.readouterr().out == example[2]
