"""The sparse part of Gemma 4 26B-A4B: a router, and the experts beside the dense MLP.

`beside` adds the experts to the MLP of `gemma4.py`, which works for every token. Each side works on
a norm of its own, and its result is normalised again before the two are added.

Source: `Gemma4TextRouter` and `Gemma4TextExperts` in `modeling_gemma4.py` of transformers.
"""

from lockstep.reference.run import Run
from lockstep.reference.shapes import Array, Hidden


def route(run: Run, x: Hidden, path: str) -> Array:
    """Choose the experts of each token, and how much each of them counts: (B, L, X).

    It normalises the stream itself, not what a norm of the experts gives. `per_expert_scale` comes
    after the weights were made to sum to 1, so that afterwards they do not.
    """
    ops, config = run.ops, run.checkpoint.config
    normed = run.tap(f"{path}.norm", ops.unit_norm(x, eps=config.rms_norm_eps))
    normed = ops.gain(normed, run.weight(f"{path}.scale"))
    logits = run.linear(ops.scale(normed, by=config.hidden_size**-0.5), f"{path}.proj")
    routing = ops.top_k_routing(logits, per_token=config.top_k_experts, normalize=True)
    routing = ops.gain(routing, run.weight(f"{path}.per_expert_scale"))
    return run.tap(f"{path}.routing", routing)


def experts(run: Run, x: Hidden, layer: int) -> Hidden:
    """Let the chosen experts work on the stream after attention."""
    ops, config, path = run.ops, run.checkpoint.config, f"model.layers.{layer}"
    routing = route(run, x, f"{path}.router")
    normed = run.rms_norm(x, f"{path}.pre_feedforward_layernorm_2")
    gate, up, down = (run.stack(f"{path}.experts.{name}_proj") for name in ("gate", "up", "down"))
    said = ops.geglu_experts(normed, routing, gate, up, down, per_token=config.top_k_experts)
    said = run.tap(f"{path}.experts", said)
    return run.rms_norm(said, f"{path}.post_feedforward_layernorm_2")


def beside(run: Run, x: Hidden, thought: Hidden, layer: int) -> Hidden:
    """Add what the experts say of `x` to what the dense MLP `thought` of it."""
    thought = run.rms_norm(thought, f"model.layers.{layer}.post_feedforward_layernorm_1")
    return run.ops.add(thought, experts(run, x, layer))
