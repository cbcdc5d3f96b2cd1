"""Small models to plant entries of the catalogue in: witnesses, some with an edited config."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.graph import Call, Evaluator, Graph, Tensor, record
from lockstep.parity.noise import ways
from lockstep.parity.noise.exact import FLOAT64, exact
from lockstep.reference import ops
from lockstep.reference.checkpoint.rope_scaling import RopeScaling
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named

ROOT = Path(__file__).parents[3]
WITNESSES = ROOT / "tests" / "witnesses"
FLOAT32 = np.dtype(np.float32)
VISIBLE = 1e-5  # of the logits' size
STEPS = 4  # tokens that are fed one by one, where any are


def stretched(**changes: Any) -> Callable[[Model], None]:
    """Edit how a model stretches its positions."""

    def edit(model: Model) -> None:
        scaling = replace(model.config.rope_scaling, **changes)
        model.config = model.checkpoint.config = replace(model.config, rope_scaling=scaling)

    return edit


def linear(model: Model) -> None:
    scaling = RopeScaling("linear", factor=3.0)
    model.config = model.checkpoint.config = replace(model.config, rope_scaling=scaling)


def with_unused_keys(model: Model) -> None:
    """Let layers that share keys have projections of their own: others' values and keys."""
    made = {"k_proj": "v_proj", "v_proj": "k_proj", "k_norm": "k_norm"}
    model.checkpoint.unused = {
        f"model.layers.{layer + 2}.self_attn.{name}.weight": model.checkpoint._stored(
            f"model.layers.{layer}.self_attn.{other}.weight"
        )
        for layer in (0, 1)
        for name, other in made.items()
    }


DECODED = ", decoded"
# name: witness, tokens of the prompt, what is edited.
EDITED: dict[str, tuple[str, int, Callable[[Model], None]]] = {
    "linear": ("llama/mistral_window", 20, linear),
    "yarn without a factor": ("llama/qwen2_yarn", 20, stretched(attention_factor=1.0)),
    "yarn from afar": ("llama/qwen2_yarn", 20, stretched(original_max_position_embeddings=4096)),
    "yarn, lone mscale": ("llama/qwen2_yarn", 20, stretched(lone_mscale=2.0)),
    "longrope with a factor": ("llama/llama_longrope", 20, stretched(attention_factor=1.4)),
    "keys that nobody uses": ("gemma4/effective", 20, with_unused_keys),
    "longrope, short": ("llama/llama_longrope", 12, lambda model: None),
    "longrope, outgrown": ("llama/llama_longrope", 18, lambda model: None),
}


@dataclass(frozen=True, eq=False)
class World:
    """A model's graph over a prompt, and what reads its tensors."""

    graph: Graph
    read: Callable[[Tensor], Any]

    def evaluator(self, namespace: Any = ops, dtype: np.dtype = FLOAT32) -> Evaluator:
        return Evaluator(self.graph, namespace, dtype, {}, self.read)

    def logits(self, rewrite: Rewrite | None = None, *way: Any) -> np.ndarray:
        """Return the logits, with a bug wherever it acts."""
        calls = {} if rewrite is None else self.calls(rewrite)
        with np.errstate(all="ignore"):
            return self.evaluator(*way).target(self.graph.taps["logits"], calls)

    def calls(self, rewrite: Rewrite) -> dict[int, Call]:
        changed = ((call.number, rewrite(call, self.graph)) for call in self.graph.calls)
        return {number: call for number, call in changed if call is not None}

    def moved(self, rewrite: Rewrite) -> float:
        """Return how far a bug moves the logits, of their size."""
        right, wrong = right_logits(self), self.logits(rewrite)
        with np.errstate(all="ignore"):
            return float(np.linalg.norm(np.nan_to_num(wrong) - right) / np.linalg.norm(right))


@cache
def right_logits(world: World) -> np.ndarray:
    return world.logits()


@cache
def world(name: str) -> World:
    """Open a witness by its folder, an adapter by `adapters/<name>`, or an edited model.

    With ", decoded" behind it, its last tokens were fed in steps.
    """
    decoded, name = name.endswith(DECODED), name.removesuffix(DECODED)
    source, count, edit = EDITED.get(name, (name, 20, None))
    model = loaded(source)
    if edit is not None:
        edit(model)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (1, count))
    steps = tuple(range(count - STEPS, count)) if decoded else ()

    return World(record(model, tokens, steps=steps), Tensors(model.checkpoint))


def loaded(source: str) -> Model:
    path = WITNESSES / source
    if not source.startswith("adapters/"):
        return reference.load(path)
    with np.load(path / "expected.npz") as kept:
        return reference.load(ROOT / str(kept["base"]), path)


def variants(faults: Sequence[Fault]) -> list[Any]:
    """Return every variant of some entries, for parametrize."""
    return [
        pytest.param(fault, name, id=f"{fault.id}[{name}]")
        for fault in faults
        for name in fault.variants
    ]


def check_shows(
    fault: Fault, variant: str, names: Sequence[str], hidden: Mapping[str, str]
) -> None:
    """By law: a variant moves the logits of some model; one that is listed as hidden, of none."""
    rewrite = fault.variants[variant]
    listed = f"{fault.id}[{variant}]" in hidden or fault.id in hidden
    shown = any(world(name).moved(rewrite) > VISIBLE for name in names)
    assert shown != listed, [world(name).moved(rewrite) for name in names]


def check_in_every_way(fault: Fault, variant: str, names: Sequence[str]) -> None:
    """By law: a bug rounds as the way of rounding does, and keeps shapes and dtypes."""
    rewrite, half = fault.variants[variant], dtype_named("bfloat16")
    found = next((world(name) for name in names if world(name).calls(rewrite)), None)
    if found is None:
        return
    legal = [(exact(ops, half), FLOAT64), ways(FLOAT32)[1], *ways(half)[1:]]
    for namespace, dtype in legal:
        wrong = found.logits(rewrite, namespace, dtype)
        assert wrong.dtype == dtype
        assert wrong.shape == found.graph.shapes[found.graph.taps["logits"]]
