"""The sparse part of Gemma 4 26B-A4B: a router, and the experts beside the dense MLP.

The order and the names are those of `reference/models/gemma4_moe.py`; read that one first.
"""

from lockstep.fast.run import Run
from lockstep.fast.shapes import Array, Hidden


def route(run: Run, x: Hidden, path: str) -> Array:
    ops, config = run.ops, run.config
    normed = run.tap(f"{path}.norm", ops.unit_norm(x, eps=config.rms_norm_eps))
    normed = ops.gain(normed, run.weights[f"{path}.scale"])
    logits = run.linear(ops.scale(normed, by=config.hidden_size**-0.5), f"{path}.proj")
    routing = ops.top_k_routing(logits, per_token=config.top_k_experts, normalize=True)
    routing = ops.gain(routing, run.weights[f"{path}.per_expert_scale"])
    return run.tap(f"{path}.routing", routing)


def foresee(run: Run, x: Hidden, layer: int) -> None:
    """Guess what the next layer will choose: what it would, if this one's experts said nothing."""
    path = f"model.layers.{layer + 1}"
    if layer + 1 < run.config.num_hidden_layers:
        run.foresee(f"{path}.experts", lambda run: route(run, x, f"{path}.router"))


def experts(run: Run, x: Hidden, layer: int) -> Hidden:
    ops, config, path = run.ops, run.config, f"model.layers.{layer}"
    routing = route(run, x, f"{path}.router")
    run.visit(f"{path}.experts", routing)
    foresee(run, x, layer)
    normed = run.rms_norm(x, f"{path}.pre_feedforward_layernorm_2")
    gate, up, down = (run.stack(f"{path}.experts.{name}_proj") for name in ("gate", "up", "down"))
    said = ops.geglu_experts(normed, routing, gate, up, down, per_token=config.top_k_experts)
    said = run.tap(f"{path}.experts", said)
    return run.rms_norm(said, f"{path}.post_feedforward_layernorm_2")


def beside(run: Run, x: Hidden, thought: Hidden, layer: int) -> Hidden:
    thought = run.rms_norm(thought, f"model.layers.{layer}.post_feedforward_layernorm_1")
    return run.ops.add(thought, experts(run, x, layer))
