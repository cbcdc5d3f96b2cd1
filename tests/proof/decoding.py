"""Ports that decode: transformers' models with a cache, and bugs of caches planted in them.

A prompt is read, then each further token is fed from a `DynamicCache` that keeps all tokens. What a
real cache would have lost, moved or changed is done to the keys and values between the cache and
the attention, so nothing of a bug here is made of masks or of the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from lockstep.parity.capture import torch as capture
from tests.proof.port import Port
from tests.proof.seams import Heads, around_turn, before_attention, rotated

Tokens = Sequence[int]


@dataclass
class Loop:
    """A loop around a port: how many tokens it has been fed, and how many there are in this pass.

    `bug` is what is planted. `position` says at which position the token of a step is thought to
    be, `feed` which one is fed.
    """

    port: Port
    bug: Callable[[Loop], None] = lambda loop: None
    prompt: int = 0
    seen: int = 0
    now: int = 0
    position: Callable[[int], int] | None = None
    feed: Callable[[Tokens, int], int] = lambda tokens, place: tokens[place]
    kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def in_step(self) -> bool:
        return self.seen > 0

    def window(self, layer: int) -> int | None:
        """Return the window of a layer, None if it sees everything."""
        config = self.port.config
        kinds = getattr(config, "layer_types", None)
        if kinds is not None and kinds[layer] != "sliding_attention":
            return None
        return getattr(config, "sliding_window", None)

    def oldest(self, layer: int) -> int:
        """Return the oldest token that the newest one may see in a layer."""
        window = self.window(layer)
        return 0 if window is None else max(self.seen + self.now - window, 0)


@torch.no_grad()
def run(
    port: Port,
    tokens: Tokens,
    lengths: Sequence[int],
    bug: Callable[[Loop], None] | None = None,
) -> Any:
    """Feed tokens, so many in each pass; return the dump."""
    loop = Loop(port, prompt=lengths[0])
    if bug is not None:
        bug(loop)
    cache, stop = DynamicCache(), 0
    with capture(port.outer) as dump:
        for loop.now in lengths:
            loop.seen, stop = stop, stop + loop.now
            places, where = range(loop.seen, stop), {}
            ids = [loop.feed(tokens, one) if loop.in_step else tokens[one] for one in places]
            if loop.in_step and loop.position is not None:
                where = {"position_ids": torch.tensor([[loop.position(one) for one in places]])}
            port.outer(torch.tensor([ids]), past_key_values=cache, use_cache=True, **where)
    dump.about["decoded"] = str([int(one) for one in tokens[lengths[0] :]])  # what it believes
    return dump


STEP_BUGS: dict[str, Callable[[Loop], None]] = {}


def bug(*names: str) -> Callable[[Any], Any]:
    """Register a bug under an id of the catalogue, or `id (variant)`."""

    def register(plant: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            STEP_BUGS[name] = plant
        return plant

    return register


def at_position(name: str, where: Callable[[Loop, int], int]) -> None:
    def plant(loop: Loop) -> None:
        loop.position = lambda place: where(loop, place)

    STEP_BUGS[name] = plant


for _id in ("rope-pos-frozen-on-decode", "learned-pos-frozen-on-decode"):
    at_position(f"{_id} (0)", lambda loop, place: 0)
    at_position(f"{_id} (from 0)", lambda loop, place: place - loop.prompt)
    at_position(f"{_id} (stands)", lambda loop, place: loop.prompt)
    at_position(f"{_id} (early)", lambda loop, place: place - 1)
at_position("learned-pos-frozen-on-decode (late)", lambda loop, place: place + 1)
at_position("learned-pos-frozen-on-decode (begins)", lambda loop, place: place + loop.seen)
at_position("learned-pos-frozen-on-decode (twice)", lambda loop, place: 2 * place - loop.prompt)
at_position("kv-offset-aliased (keys too)", lambda loop, place: place + 1)
at_position("rope-pos-double-advance (begins)", lambda loop, place: place + loop.seen)
at_position("rope-pos-double-advance (twice)", lambda loop, place: 2 * place - loop.prompt)
at_position(
    "kv-position-from-retained-count (window)",
    lambda loop, place: min(place, loop.port.config.sliding_window),
)


def remembering(name: str, held: Callable[[Loop, int, int], Sequence[int] | None]) -> None:
    """Let a step see other tokens: `held(loop, layer, its own number)`, None for the right ones.

    Number -1 is a slot of zeros.
    """

    def plant(loop: Loop) -> None:
        for layer, module in enumerate(loop.port.attentions()):
            before_attention(module, lambda heads, layer=layer: changed(loop, layer, heads))

    def changed(loop: Loop, layer: int, heads: Heads) -> Heads:
        slots = held(loop, layer, loop.seen) if loop.in_step else None
        if slots is None:
            return heads
        chosen = torch.tensor([*slots])
        empty = (chosen < 0)[:, None]
        keys, values = (
            x[:, :, chosen.clamp(min=0)].masked_fill(empty, 0.0) for x in (heads.key, heads.value)
        )
        return heads.but(key=keys, value=values, mask=None)

    STEP_BUGS[name] = plant


def right(loop: Loop, layer: int, token: int) -> list[int]:
    return list(range(loop.oldest(layer), token + 1))


def ring(loop: Loop, layer: int, token: int, slots: list[int], place: Callable) -> list[int]:
    """Write the tokens after the prompt into a ring that holds `slots`, each at `place`."""
    window = loop.window(layer)
    for one in range(loop.prompt, token + 1):
        if len(slots) < window:
            slots.append(one)
        else:
            slots[place(one, window)] = one
    return slots


def in_ring(first: bool, place: Callable[[int, int], int]) -> Callable:
    def held(loop: Loop, layer: int, token: int) -> list[int] | None:
        window = loop.window(layer)
        if window is None:
            return None
        start = 0 if first else max(loop.prompt - window, 0)
        slots = list(range(start, min(start + window, loop.prompt)))
        return ring(loop, layer, token, slots, place)

    return held


def windowed(by: int) -> Callable:
    def held(loop: Loop, layer: int, token: int) -> list[int] | None:
        window = loop.window(layer)
        return None if window is None else list(range(max(token + 1 - window - by, 0), token + 1))

    return held


def with_sinks(loop: Loop, layer: int, token: int) -> list[int] | None:
    window = loop.window(layer)
    if window is None or token < window:
        return None
    return [0, 1, 2, 3, *range(token + 1 - (window - 4), token + 1)]


remembering("kv-never-stored", lambda loop, layer, token: [token])
remembering(
    "kv-cursor-not-advanced (prompt in one slot)",
    lambda loop, layer, token: [loop.prompt - 1] + [-1] * (loop.prompt - 1)
    + list(range(loop.prompt, token + 1)),
)  # fmt: skip
remembering(
    "kv-cursor-not-advanced (later in one slot)",
    lambda loop, layer, token: [*range(loop.oldest(layer), loop.prompt), token],
)
remembering(
    "kv-cursor-not-advanced (too early)",
    lambda loop, layer, token: [one for one in right(loop, layer, token) if one != loop.prompt - 1],
)
remembering(
    "kv-cursor-not-advanced (too late)", lambda loop, layer, token: [*right(loop, layer, token), -1]
)
remembering("mask-top-left-aligned", lambda loop, layer, token: [0])
remembering(
    "mask-swa-missing-in-decode",
    lambda loop, layer, token: list(range(token + 1)) if loop.window(layer) else None,
)
remembering("kv-ring-size-off-by-one (less)", windowed(-1))
remembering("kv-ring-size-off-by-one (more)", windowed(1))
remembering("kv-ring-size-off-by-one (first kept)", with_sinks)
remembering("kv-ring-size-off-by-one (end)", in_ring(False, lambda token, window: window - 1))
remembering("kv-ring-sliced-as-flat (mod)", in_ring(False, lambda token, window: token % window))
remembering("kv-ring-sliced-as-flat (first)", in_ring(True, lambda token, window: token % window))
remembering(
    "kv-chunk-cache-trims-buffer (end)",
    lambda loop, layer, token: right(loop, layer, token) + [-1] * (255 - token),
)


def finding(name: str, change: Callable[[Loop, int, Heads, torch.Tensor, str], torch.Tensor]):
    """Let steps find other keys and values in the cache: `change(loop, layer, heads, x, part)`."""

    def plant(loop: Loop) -> None:
        for layer, module in enumerate(loop.port.attentions()):
            before_attention(module, lambda heads, layer=layer: changed(loop, layer, heads))

    def changed(loop: Loop, layer: int, heads: Heads) -> Heads:
        found = {}
        for part in ("key", "value"):
            x = getattr(heads, part)
            loop.kept[layer, part] = x
            cached = x[:, :, : loop.seen] if loop.in_step else x
            if loop.in_step:
                new = change(loop, layer, heads, cached, part)
                found[part] = torch.cat([new, x[:, :, loop.seen :]], dim=2)
        return heads.but(**found)

    STEP_BUGS[name] = plant


OTHER = {"key": "value", "value": "key"}


def eight_bits(x: torch.Tensor) -> torch.Tensor:
    step = x.float().abs().amax(dim=-1, keepdim=True) / 127
    step = torch.where(step == 0, 1.0, step)
    return ((x.float() / step).round() * step).to(x.dtype)


def rotated_by_hadamard(x: torch.Tensor) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < x.shape[-1]:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (x.float() @ matrix / x.shape[-1] ** 0.5).to(x.dtype)


finding("kv-int8-noise (head)", lambda loop, layer, heads, x, part: eight_bits(x))
finding(
    "kv-int8-noise (float16)", lambda loop, layer, heads, x, part: x.to(torch.float16).to(x.dtype)
)
finding(
    "kv-int8-noise (float8)",
    lambda loop, layer, heads, x, part: x.to(torch.float8_e4m3fn).to(x.dtype),
)
finding(
    "kv-exchanged",
    lambda loop, layer, heads, x, part: getattr(heads, OTHER[part])[:, :, : loop.seen],
)
finding("kv-quant-basis-mismatch", lambda loop, layer, heads, x, part: rotated_by_hadamard(x))
finding(
    "kv-of-other-layer (first)",
    lambda loop, layer, heads, x, part: loop.kept[0, part][:, :, : loop.seen],
)
finding(
    "kv-of-other-layer (before)",
    lambda loop, layer, heads, x, part: loop.kept[max(layer - 1, 0), part][:, :, : loop.seen],
)


def tables(loop: Loop, stop: int, x: torch.Tensor) -> Any:
    """Return cosines and sines of the first positions."""
    return loop.port.base.rotary_emb(x, torch.arange(stop)[None])


@bug("rope-on-cached-keys-again (once)")
def turned_once_more(loop: Loop) -> None:
    finding_keys(loop, lambda x: rotated("k", x, *tables(loop, x.shape[2], x)))


def finding_keys(loop: Loop, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the keys that steps find in the cache, in the way that all layers share."""

    def changed(heads: Heads) -> Heads:
        if not loop.in_step:
            return heads
        old, new = heads.key[:, :, : loop.seen], heads.key[:, :, loop.seen :]
        return heads.but(key=torch.cat([change(old), new], dim=2))

    for module in loop.port.attentions():
        before_attention(module, changed)


def turning_what_is_held(loop: Loop, positions: Callable[[int], torch.Tensor]) -> None:
    """Turn all that is in the cache at each step, and leave it there."""

    def changed(layer: int, heads: Heads) -> Heads:
        held = loop.kept.get(layer)
        if held is not None:
            tables = loop.port.base.rotary_emb(held, positions(held.shape[2])[None])
            held = rotated("k", held, *tables)
        new = heads.key[:, :, loop.seen :]
        loop.kept[layer] = new if held is None else torch.cat([held, new], dim=2)
        return heads.but(key=loop.kept[layer])

    for layer, module in enumerate(loop.port.attentions()):
        before_attention(module, lambda heads, layer=layer: changed(layer, heads))


@bug("rope-on-cached-keys-again (anew)")
def turned_in_every_step(loop: Loop) -> None:
    turning_what_is_held(loop, torch.arange)


@bug("rope-on-cached-keys-again (by the step)")
def turned_by_the_step(loop: Loop) -> None:
    turning_what_is_held(loop, lambda held: torch.full((held,), loop.seen))


@bug("kv-cached-before-rope")
def kept_unturned(loop: Loop) -> None:
    """Put keys into the cache as they are before their turn."""

    def turn(previous: Any, role: str, x: torch.Tensor, cos: Any, sin: Any, layer: int) -> Any:
        if role == "k":
            held = loop.kept.get(layer)
            loop.kept[layer] = x if held is None else torch.cat([held, x], dim=2)
        return previous(role, x, cos, sin)

    def changed(layer: int, heads: Heads) -> Heads:
        if not loop.in_step:
            return heads
        old = loop.kept[layer][:, :, : loop.seen]
        return heads.but(key=torch.cat([old, heads.key[:, :, loop.seen :]], dim=2))

    for layer, module in enumerate(loop.port.attentions()):
        around_turn(module, lambda previous, *args, layer=layer: turn(previous, *args, layer=layer))
        before_attention(module, lambda heads, layer=layer: changed(layer, heads))


@bug("kv-head-count-in-cache (zeros)")
def heads_of_queries(loop: Loop) -> None:
    """Give the cache as many heads as there are queries, and fill those of the keys."""

    def changed(heads: Heads) -> Heads:
        if not loop.in_step:
            return heads
        count, found = heads.query.shape[1], {}
        for part in ("key", "value"):
            x = getattr(heads, part)
            buffer = torch.zeros(x.shape[0], count, *x.shape[2:], dtype=x.dtype)
            buffer[:, : x.shape[1]] = x
            found[part] = buffer
        return heads.but(**found, groups=1)

    for module in loop.port.attentions():
        before_attention(module, changed)


@bug("last-token-fed-twice")
def one_behind(loop: Loop) -> None:
    """Feed the last token of the prompt again, and so on."""
    loop.feed = lambda tokens, place: tokens[place - 1]


@bug("kv-offset-aliased (queries)")
def queries_one_late(loop: Loop) -> None:
    """Read the offset, for queries in steps, behind the update of the cache."""

    def turn(previous: Any, role: str, x: torch.Tensor, cos: Any, sin: Any) -> Any:
        if role == "q" and loop.in_step:
            later = torch.arange(loop.seen, loop.seen + loop.now)[None] + loop.now
            cos, sin = loop.port.base.rotary_emb(x, later)
        return previous(role, x, cos, sin)

    for module in loop.port.attentions():
        around_turn(module, turn)
