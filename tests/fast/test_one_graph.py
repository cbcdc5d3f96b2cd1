"""Nothing inside a step of MLX asks for a value: the step is one graph, evaluated behind it.

By law: `mx.compile` traces a function with arrays that have no values, and refuses one that asks
for any.
"""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from lockstep import fast
from tests.every_architecture import CONFIGS, write


def traced(model, cache, between):
    """Return a step as a function of a factor of the stream, which makes all behind it unknown."""
    own = model.ops
    parts = {name: getattr(own, name) for name in dir(own) if not name.startswith("_")}

    def step(factor):
        def embedding(*args, **kinds):
            return between(own.embedding(*args, **kinds) * factor)

        model.ops = SimpleNamespace(**parts | {"embedding": embedding})
        return model.forward(np.array([[3]]), cache=cache.branch(), last_only=True)

    return step


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_is_one_graph(tmp_path, name):
    folder = write(tmp_path / "model", name)
    model = fast.load(folder, backend="mlx", dtype="float32")
    cache = model.make_cache()
    mx.eval(model.forward(np.array([[1, 2, 3, 4]]), cache=cache))
    step = traced(model, cache, lambda x: x)
    logits = mx.compile(step)(mx.array(1.0))  # traced, and never evaluated: that takes a compiler
    assert logits.shape == (1, 1, model.config.vocab_size)


def test_one_that_asks_for_a_value_is_none(tmp_path):
    """That the law above can be broken: a value that goes by way of Python."""
    folder = write(tmp_path / "model", "qwen3")
    model = fast.load(folder, backend="mlx", dtype="float32")
    step = traced(model, model.make_cache(), lambda x: x * float(x.max()))
    with pytest.raises((RuntimeError, ValueError), match="eval"):
        mx.compile(step)(mx.array(1.0))
