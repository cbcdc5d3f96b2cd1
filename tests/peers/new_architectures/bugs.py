"""Bugs, each planted in one module of a torch model, and the tap whose own error they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Bug:
    """`plant` changes a model's modules; `tap` then is wrong in itself, if all are dumped."""

    architecture: str
    name: str
    tap: str
    plant: Callable[[Any], None]

    def __str__(self) -> str:
        return f"{self.architecture}-{self.name}"


def layer(model: Any, number: int = 1) -> Any:
    return model.model.layers[number]


def instead(module: Any, change: Callable[[Any], Any]) -> None:
    """Let a module hand out something else than it computes."""
    forward = module.forward
    module.forward = lambda *args, **kwargs: change(forward(*args, **kwargs))


def fed_with(module: Any, **changes: Callable[[Any], Any]) -> None:
    """Let a module get other arguments than it is called with."""
    forward = module.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs | {key: to(kwargs[key]) for key, to in changes.items()})

    module.forward = changed


def with_eps(model: Any) -> None:
    layer(model).self_attn.k_norm.variance_epsilon = 0.5


def with_gelu(model: Any) -> None:
    layer(model, 0).mlp.act_fn = torch.nn.GELU()


def with_larger_scores(model: Any) -> None:
    layer(model).self_attn.scaling *= 1.1


def with_shifted_positions(model: Any) -> None:
    def later(turns: Any) -> Any:
        return tuple(torch.roll(one, 1, dims=1) for one in turns)

    fed_with(layer(model, 0).self_attn, position_embeddings=later)


def with_negated_angles(model: Any) -> None:
    fed_with(layer(model).self_attn, position_embeddings=lambda turns: (turns[0], -turns[1]))


def with_a_lighter_residual(model: Any) -> None:
    instead(layer(model), lambda output: 0.98 * output)


def with_a_wider_window(model: Any) -> None:
    def wider(mask: torch.Tensor) -> torch.Tensor:
        """Let each token see the one before its window."""
        return mask.clone().masked_fill(
            torch.ones(mask.shape[-2:], dtype=torch.bool).tril(-4).triu(-4), 0.0
        )

    fed_with(layer(model, 2).self_attn, attention_mask=wider)


def without_embedding_scale(model: Any) -> None:
    embedding = model.model.embed_tokens
    embedding.forward = lambda ids: torch.nn.functional.embedding(ids, embedding.weight)


def without_final_cap(model: Any) -> None:
    model.config.final_logit_softcapping = None


def without_sinks(model: Any) -> None:
    layer(model).self_attn.sinks.data.fill_(-1e4)


def with_louder_router(model: Any) -> None:
    """The logits are wrong, and so are the choice and the weights that come of them."""
    block = layer(model).mlp
    router = block.router if hasattr(block, "router") else block.gate
    router.weight.data *= 1.2


def with_equal_weights(model: Any) -> None:
    """The choice is right; what each chosen expert counts is not."""
    experts = layer(model).mlp.experts
    forward = experts.forward
    experts.forward = lambda x, index, weights: forward(x, index, weights * 0 + 0.5)


def with_swapped_experts(model: Any) -> None:
    weights = layer(model).mlp.experts.down_proj.data
    weights[[0, 1]] = weights[[1, 0]]


def with_a_biased_router(model: Any) -> None:
    """One expert is chosen more often than it should be."""
    layer(model).mlp.gate.weight.data[3] += 0.05


def with_one_expert_less(model: Any) -> None:
    layer(model).mlp.gate.top_k -= 1


def without_the_best_expert(model: Any) -> None:
    """The choice begins one place too late."""
    gate = layer(model).mlp.gate
    forward, count = gate.forward, gate.top_k

    def later(x: torch.Tensor) -> Any:
        logits = forward(x)[0]
        weights, index = logits.softmax(-1).topk(count + 1, dim=-1)
        weights = weights[:, 1:]
        return logits, weights / weights.sum(-1, keepdim=True), index[:, 1:]

    gate.forward = later


def with_a_near_expert(model: Any, tokens: Sequence[int]) -> None:
    """No bug: the token whose second and third expert are most nearly equal takes the third."""
    gate = layer(model).mlp.gate
    forward = gate.forward

    def other(x: torch.Tensor) -> Any:
        logits, weights, index = forward(x)
        falling, order = logits.float().sort(dim=-1, descending=True)
        gaps = falling[:, 1] - falling[:, 2]
        token = min(tokens, key=lambda one: float(gaps[one]))
        index, weights = index.clone(), weights.clone()
        index[token] = order[token, [0, 2]]
        scores = logits[token].float().softmax(-1)[index[token]]
        weights[token] = (scores / scores.sum()).to(weights.dtype)
        return logits, weights, index

    gate.forward = other


def with_a_residual_too_many(model: Any) -> None:
    """The sum of routed and shared experts lies in the block around them."""
    block = layer(model, 2).mlp
    forward = block.forward
    block.forward = lambda x: forward(x) + 0.1 * x


def with_wrong_logit_scale(model: Any) -> None:
    model.config.logits_scaling = 2.1


BUGS = [
    Bug("Olmo2", "eps", "model.layers.1.self_attn.k_norm", with_eps),
    Bug("Olmo2", "gelu", "model.layers.0.mlp.act_fn", with_gelu),
    Bug("Olmo2", "scale", "model.layers.1.self_attn.o_proj", with_larger_scores),
    Bug("Olmo2", "positions", "model.layers.0.self_attn.o_proj", with_shifted_positions),
    Bug("Olmo2", "residual", "model.layers.1", with_a_lighter_residual),
    Bug("Gemma3Text", "window", "model.layers.2.self_attn.o_proj", with_a_wider_window),
    Bug("Gemma3Text", "embedding", "model.embed_tokens", without_embedding_scale),
    Bug("Gemma2", "softcap", "logits", without_final_cap),
    Bug("Gemma2", "angles", "model.layers.1.self_attn.o_proj", with_negated_angles),
    Bug("Cohere2", "window", "model.layers.2.self_attn.o_proj", with_a_wider_window),
    Bug("Phi3", "angles", "model.layers.1.self_attn.o_proj", with_negated_angles),
    Bug("Granite", "logits", "logits", with_wrong_logit_scale),
    Bug("Olmoe", "router", "model.layers.1.mlp.gate", with_louder_router),
    Bug("Olmoe", "weights", "model.layers.1.mlp.experts", with_equal_weights),
    Bug("Mixtral", "experts", "model.layers.1.mlp.experts", with_swapped_experts),
    Bug("Mixtral", "router", "model.layers.1.mlp.gate", with_louder_router),
    Bug("Phimoe", "angles", "model.layers.1.self_attn.o_proj", with_negated_angles),
    Bug("GptOss", "sinks", "model.layers.1.self_attn.o_proj", without_sinks),
    Bug("GptOss", "router", "model.layers.1.mlp.router", with_louder_router),
    Bug("GptOss", "experts", "model.layers.1.mlp.experts", with_swapped_experts),
    Bug("DeepseekV3", "sum", "model.layers.2.mlp", with_a_residual_too_many),
]
