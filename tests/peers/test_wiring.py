"""Modules of a port that are fed from the wrong place: named once, with what they get.

By hand: a torch model whose modules get another value. That bugs inside of modules are no wires is
seen in test_new_architectures.py, where they are planted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import parity
from lockstep.parity.torch_modules import wiring
from lockstep.parity.torch_modules.survey import Survey
from lockstep.parity.torch_modules.wiring import Wire, lines_of
from tests.peers.new_architectures.builds import loaded
from tests.peers.new_architectures.runs import captured, wrong
from tests.witnesses import build

PLAIN = Path(__file__).parents[1] / "witnesses/llama/mistral_window"  # of two layers


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


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
@pytest.mark.parametrize(("plant", "line"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_wiring_is_named_once(plant, line, dtype):
    model = loaded(PLAIN, dtype)
    plant(Wires(model))
    dump = captured(model)
    result = parity.diff(dump, dump, model=PLAIN)
    assert result.wiring == [f"wiring: {line}"]
    assert wrong(result) != []
    assert result.to_json()["conventions"][0] == f"wiring: {line}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_modules_of_different_layers_are_not_told_together(dtype):
    """By hand: v_proj of one layer and k_proj of another get what enters."""
    model = loaded(PLAIN, dtype)
    wires = Wires(model)
    wires.feed("layers.0.self_attn.v_proj", "layers.0:in")
    wires.feed("layers.1.self_attn.k_proj", "layers.1:in")
    dump = captured(model)
    line = "wiring: in layer {} self_attn.{}_proj gets what enters the layer in place of " + NORM
    found = parity.diff(dump, dump, model=PLAIN).wiring
    assert found == [line.format(0, "v"), line.format(1, "k")]


def test_wires_are_told_with_layers_and_steps():
    """By hand."""

    def wire(step: str, layer: int, tap: str, got: str) -> Wire:
        home = f"{step}model.layers.{layer}.self_attn."
        return Wire(home + tap, (home + got,), (home + "right",))

    some = [wire("", layer, tap, "got") for layer in (0, 1) for tap in ("a", "b")]
    later = [wire("step.2/", 1, "a", "got"), wire("step.2/", 1, "a", "other")]
    last = "in place of self_attn.right"
    assert lines_of([*some, *later]) == [
        f"wiring: in layers 0, 1 self_attn.a and self_attn.b get self_attn.got {last}",
        f"wiring: in layer 1 in step 2 self_attn.a gets self_attn.got {last}",
        f"wiring: in layer 1 in step 2 self_attn.a gets self_attn.other {last}",
    ]


def test_wires_are_judged_in_parts_that_fit_into_memory(monkeypatch):
    """By hand: of 6 numbers each, two at once of 12; one that is larger than all stands alone."""
    monkeypatch.setattr(wiring, "AT_ONCE", 12)
    found = Survey(shapes={"small": (1, 2, 3), "large": (1, 5, 3)})
    some = [Wire(tap, (), ()) for tap in ("small", "small", "small", "large", "small")]
    assert [len(part) for part in wiring.in_parts(some, found)] == [2, 1, 1, 1]


@pytest.mark.parametrize("other", [1e-4, 1.0], ids=["within rounding", "another"])
def test_one_of_two_sums_is_named_if_rounding_tells_them_apart(other, tmp_path):
    """By hand: layers that hardly add anything to the stream leave it open which was taken."""
    model = loaded(PLAIN, "bfloat16")
    for name, parameter in model.named_parameters():
        if "layers.0" in name and ("o_proj" in name or "down_proj" in name):
            parameter.data *= other
    model.save_pretrained(tmp_path)
    wires = Wires(model)
    wires.feed("norm", "layers.0:out")
    dump = captured(model)
    found = parity.diff(dump, dump, model=tmp_path).wiring
    assert found == ["wiring: " + CASES[2][1]] * (other == 1.0)
