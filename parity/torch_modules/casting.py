"""Bring a model's weights to another precision and back, without losing a bit."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.parity.torch_modules.rewriting import exact


@contextmanager
def widened_to(module: Any, dtype: str) -> Iterator[None]:
    """Hold a model's weights, as they are rounded, in a wider dtype inside of a block."""
    import torch

    kept = {name: one.dtype for name, one in module.named_parameters()}
    held = {name: one for name, one in module.named_buffers() if one.is_floating_point()}
    cast(module, dict.fromkeys(kept, getattr(torch, dtype)))
    put(module, {name: one.to(getattr(torch, dtype)) for name, one in held.items()})
    try:
        yield
    finally:
        cast(module, kept)
        put(module, held)


@contextmanager
def held_exactly(module: Any) -> Iterator[None]:
    """Hold weights as they are rounded in float64, and what is no weight computed in float64.

    That is RoPE's frequencies above all, of which a model keeps a float32 copy.
    """
    import torch

    stored = module.state_dict().keys()
    with widened_to(module, "float64"):
        put(module, {
            name: one for name, one in twin(module).named_buffers()
            if name not in stored and one.dtype == torch.float64
        })  # fmt: skip
        yield


@contextmanager
def nearby_frequencies(module: Any) -> Iterator[None]:
    """Put RoPE's frequencies a unit in the last place off, up and down by turns: other `pow`s."""
    import torch

    held = {name: one for name, one in module.named_buffers() if name.endswith("inv_freq")}
    beyond = {
        name: torch.where(torch.arange(one.numel()).reshape(one.shape) % 2 == 0, torch.inf, 0.0)
        for name, one in held.items()
    }
    near = {name: one.nextafter(beyond[name].to(one.dtype)) for name, one in held.items()}
    put(module, {name: torch.where(held[name] == 1, held[name], one) for name, one in near.items()})
    try:
        yield
    finally:
        put(module, held)


def twin(module: Any) -> Any:
    """Return the same model made anew in float64, with weights that were never filled."""
    from transformers.initialization import no_init_weights

    with no_init_weights(), exact():
        return type(module)(module.config)


def cast(module: Any, dtypes: dict[str, Any]) -> None:
    for name, parameter in module.named_parameters():
        parameter.data = parameter.data.to(dtypes[name])


def put(module: Any, buffers: dict[str, Any]) -> None:
    """Put buffers into the places of their names."""
    for name, value in buffers.items():
        path, _, own = name.rpartition(".")
        module.get_submodule(path)._buffers[own] = value
