"""Modules of a port that are fed from the wrong place: named once, with what they get.

By hand: a torch model whose modules get another value. By law: bugs inside of modules are no wires.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import parity
from tests.peers.new_architectures.bugs import BUGS
from tests.peers.new_architectures.builds import Folders, loaded
from tests.peers.new_architectures.runs import captured, wrong
from tests.witnesses import build

PLAIN = Path(__file__).parents[1] / "witnesses/llama/mistral_window"  # of two layers


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("models"))


class Wires:
    """Lets modules of a model get the sum of what others handed out or were given before."""

    def __init__(self, model: Any):
        self.model, self.held = model.model, {}
        for name, module in self.model.named_modules():
            module.register_forward_hook(self.keep(f"{name}:out"))
            module.register_forward_pre_hook(self.entering(f"{name}:in"), with_kwargs=True)

    def keep(self, name: str) -> Any:
        def seen(module: Any, args: Any, output: Any) -> None:
            self.held[name] = output[0] if isinstance(output, tuple) else output

        return seen

    def entering(self, name: str) -> Any:
        def seen(module: Any, args: Any, kwargs: Any) -> None:
            self.held[name] = args[0] if args else kwargs.get("hidden_states")

        return seen

    def feed(self, path: str, *sources: str) -> None:
        """Let a module get the sum of sources, `name:out` or `name:in`."""
        module = self.model.get_submodule(path)
        forward = module.forward
        module.forward = lambda x: forward(sum(self.held[one] for one in sources))


def unnormed_values(wires: Wires) -> None:
    wires.feed("layers.1.self_attn.v_proj", "layers.1:in")


def crossed_projections(wires: Wires) -> None:
    for name in ("gate_proj", "up_proj"):
        wires.feed(f"layers.1.mlp.{name}", "layers.1.input_layernorm:out")


def earlier_layer(wires: Wires) -> None:
    wires.feed("norm", "layers.0:out")


def stream_too_many(wires: Wires) -> None:
    wires.feed("layers.1.post_attention_layernorm", "layers.1.self_attn.o_proj:out")


NORM, MLP = "input_layernorm", "mlp.gate_proj and mlp.up_proj"
SUM = "what enters the layer + self_attn.o_proj"
CASES: list[tuple[Callable[[Wires], None], str]] = [
    (unnormed_values, f"in layer 1 self_attn.v_proj gets what enters the layer in place of {NORM}"),
    (crossed_projections, f"in layer 1 {MLP} get {NORM} in place of post_attention_layernorm"),
    (earlier_layer, "model.norm gets model.layers.0 in place of model.layers.1"),
    (stream_too_many,
     f"in layer 1 post_attention_layernorm gets self_attn.o_proj in place of {SUM}"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("plant", "told"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_wiring_is_named_once(plant, told, dtype):
    model = loaded(PLAIN, dtype)
    plant(Wires(model))
    dump = captured(model)
    result = parity.diff(dump, dump, model=PLAIN)
    assert result.wiring == [f"wiring: {told}"]
    assert wrong(result) != []
    assert result.to_json()["conventions"][0] == f"wiring: {told}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bug", [one for one in BUGS if one.architecture != "GptOss"], ids=str)
def test_bugs_of_other_kinds_are_no_wires(bug, dtype, folder):
    model = loaded(folder(bug.architecture), dtype)
    bug.plant(model)
    dump = captured(model)
    result = parity.diff(dump, dump, model=folder(bug.architecture))
    assert (result.wiring, result.verdict) == ([], "diverged")
