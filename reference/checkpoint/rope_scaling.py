"""How a model stretches its positions beyond the length that it was first trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# The keywords of each kind's operation, `rope_frequencies_<kind>`, beside theta and dims.
OPTIONS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings", "truncate"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True)
class RopeScaling:
    """One kind and its numbers. Field names are keys of config.json; None is not of this kind.

    `attention_factor` multiplies cosines and sines; it is worked out where the config leaves it
    open. `original_max_position_embeddings` of the kind "dynamic" is `max_position_embeddings`.
    `lone_mscale` is an `mscale` of YaRN that counts for nothing, though some engines count it.
    """

    rope_type: str = "default"
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    attention_factor: float = 1.0
    lone_mscale: float | None = field(default=None, compare=False)

    def frequencies(self, ops: Any, *, theta: float, dims: int, lengths: Any) -> Any:
        """Have the operation of this kind say how far each pair turns: (D/2,) or (B, D/2).

        `lengths` (B,) counts the tokens of each row so far; two kinds depend on it.
        """
        if self.rope_type == "default":
            return ops.rope_frequencies(theta=theta, dims=dims)
        operation = getattr(ops, f"rope_frequencies_{self.rope_type}")
        options = {name: getattr(self, name) for name in OPTIONS[self.rope_type]}
        rows = (lengths,) if self.rope_type in BY_LENGTH else ()
        return operation(*rows, theta=theta, dims=dims, **options)


def context_length(config: Any) -> int:
    """Return how many tokens a text may have: as the config announces, or as it stretches that.

    Of the kinds "linear" and "dynamic" `max_position_embeddings` is the length before; with "yarn"
    it may be either one.
    """
    announced, scaling = config.max_position_embeddings, getattr(config, "rope_scaling", None)
    if scaling is None or scaling.rope_type not in ("linear", "dynamic", "yarn"):
        return announced
    original = scaling.original_max_position_embeddings or announced
    return max(announced, int(original * scaling.factor))


def steady_length(config: Any) -> int | None:
    """Return up to how many tokens a text may be read in parts, None if in any number.

    Beyond the original length two kinds turn all tokens of a step as far as the last of them asks
    for. So what a text gives depends there on how it was cut into steps.
    """
    scaling = getattr(config, "rope_scaling", None)
    if scaling is None or scaling.rope_type not in BY_LENGTH:
        return None
    return scaling.original_max_position_embeddings
