"""The layers of a model for one token: all of their kernels, with no Python between them.

Kernels are bound to the weights when a token first goes through, and to arrays of their own for
what stands between them; attention is bound to what a cache holds its keys and values in. They
are the kernels that operations start one by one, so they write the same bits.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lockstep.fast.kernels.alike import KINDS
from lockstep.fast.kernels.attend import HELD, TOGETHER, WIDE, attend_held, together
from lockstep.fast.kernels.kernel import Kept, played, usable
from lockstep.fast.kernels.memory import seen
from lockstep.fast.kernels.steps import NoKernelError, Steps
from lockstep.fast.kernels.turn import turns_at
from lockstep.fast.shapes import Array, Frequencies, Hidden, Keys, Values

# Tokens for which layers are done by operations, behind one of which a product had to be.
ASIDE = 64
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
WIDENING = ("mlp.gate_proj", "mlp.up_proj")
NORMS = ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm")
OUTWARDS, BACK = "self_attn.o_proj", "mlp.down_proj"
MODULES = (*NORMS, *QKV, OUTWARDS, *WIDENING, BACK)


def names_of(layers: Iterable[int]) -> list[str]:
    """Return the names of all weights that layers may have."""
    return [
        f"model.layers.{layer}.{module}.{kind}"
        for layer in layers for module in MODULES for kind in ("weight", "bias")
    ]  # fmt: skip


class Layer:
    """One layer, bound to a model's settings and weights, and to where the streams before it and
    behind it lie. What of its products is lost, `lost` says: see `Steps`.

    Raises: NoKernelError if something of it has no kernel.
    """

    def __init__(self, run: Any, layer: int, x: Array, turns: Array, out: Array, lost: Array):
        self.run, self.path, self.steps = run, f"model.layers.{layer}", Steps(lost, x.dtype)
        self.to_heads(x, turns)
        self.before = len(self.steps.kept)  # kernels that run before attention
        self.from_contexts(x, out)
        del self.run

    def of(self, module: str, kind: str = "weight") -> Any:
        return self.run.weights.get(f"{self.path}.{module}.{kind}")

    def product(self, x: Array, module: str) -> Array:
        return self.steps.product(x, self.of(module), self.of(module, "bias"))

    def products(self, x: Array, modules: tuple[str, ...]) -> list[Array]:
        """Bind several modules of one input: one product, if their matrices lie in one."""
        joined = self.run.joined.get(tuple(f"{self.path}.{one}" for one in modules))
        if joined is None:
            return [self.product(x, one) for one in modules]
        y = self.steps.product(x, joined.weight, joined.bias)
        return [y[:, columns] for columns in joined.columns]

    def to_heads(self, x: Array, turns: Array) -> None:
        """Bind the norm, queries, keys and values, norms of heads if there are any, and rope."""
        config, steps = self.run.config, self.steps
        eps, width = config.rms_norm_eps, config.head_dim
        wide = self.products(steps.normed(x, self.of(NORMS[0]), eps), QKV)
        parts = [one.reshape(1, 1, -1, width) for one in wide]
        gains = [self.of(one) for one in NORMS[1:3]]
        if gains[0] is None:
            self.queries, self.keys = (steps.turned(one, turns) for one in parts[:2])
        else:
            given = parts[0], parts[1], (gains[0], gains[1]), eps, turns
            self.queries, self.keys = steps.normed_and_turned(*given)
        self.values = parts[2].swapaxes(1, 2)
        self.asked = steps.recast(self.queries, WIDE)
        self.scale = np.float32(width**-0.5)

    def from_contexts(self, x: Array, out: Array) -> None:
        """Bind what adds the projection of contexts to the stream, and a gated feed-forward."""
        steps, eps = self.steps, self.run.config.rms_norm_eps
        self.context = np.zeros((1, self.asked.size), WIDE)
        stream = steps.sum(x, self.product(steps.rounded(self.context), OUTWARDS))
        normed = steps.normed(stream, self.of(NORMS[3]), eps)
        gated = steps.gated(*self.products(normed, WIDENING))
        steps.sum(stream, self.product(gated, BACK), out)

    def attention(self, keys: Keys, values: Values, now: Array) -> Kept:
        """Bind attention to what a cache holds keys and values in, (1, G, room, D)."""
        _, heads, _, width = self.asked.shape
        token, held = (seen(self.keys), seen(self.values)), (seen(keys), seen(values))
        shown = np.ones((1, keys.shape[2]), np.bool_)
        given = *token, held, now, self.asked[:, :, 0], shown, self.scale
        products, places = 2 * heads * shown.size * width, heads // now[TOGETHER]
        return attend_held.kept(
            products, int(places), *given, self.context.reshape(1, heads, width)
        )


class Held:
    """Layers whose attention is bound to one cache: all kernels as `played` takes them."""

    def __init__(self, layers: Sequence[Layer], buffers: Sequence[tuple[Keys, Values]], now: Array):
        self.buffers = buffers
        self.alive, rows, self.ends = list[Kept](), list[tuple[int, ...]](), [0]
        for layer, held in zip(layers, buffers, strict=True):
            kept = [*layer.steps.kept]
            kept.insert(layer.before, layer.attention(*held, now))
            self.alive += kept
            rows += [one.numbers for one in kept]
            self.ends.append(len(rows))
        self.jobs = np.array(rows, np.int64)

    def reserved(self, cache: Any, layers: int) -> bool:
        """Make room for a token, if a cache has it in what so many layers are bound to."""
        return len(self.buffers) >= layers and cache.reserve_again(self.buffers[:layers])


class Layers:
    """The layers of one model, bound to what they were last asked for with."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.config: Any = None
        self.names: list[str] = []
        self.weights: list[Any] = []
        self.layers: list[Layer] = []
        self.caches: WeakKeyDictionary[Any, Held] = WeakKeyDictionary()
        self.good, self.aside = 0, 0  # layers that may be run, for so many tokens

    def streams(
        self, run: Any, x: Hidden, masks: Mapping[str, Any], frequencies: Frequencies
    ) -> list[Hidden]:
        """Return the streams behind the first layers, for one token (1, 1, E), float32 or bfloat16.

        None of them where it does not see all that is held, or another thread is at it; those
        before a layer of which something has no kernel, or a product is to be done in another way.
        Without any, nothing keeps the cache's buffers, which may now grow.
        Raises: ValueError if the cache is another model's.
        """
        found = self.tried(run, x, masks, frequencies)
        if not found:
            self.caches.pop(run.cache, None)
        return found

    def tried(
        self, run: Any, x: Hidden, masks: Mapping[str, Any], frequencies: Frequencies
    ) -> list[Hidden]:
        alone = x.size == x.shape[-1] and x.dtype in KINDS and usable()
        if not alone or any(mask.kind != "all" for mask in masks.values()):
            return []
        if not self.busy.acquire(blocking=False):
            return []
        try:
            if not self.stand(run) or self.x.dtype != x.dtype:
                self.bind(run, x[0])
            return self.through(run, x, frequencies)
        finally:
            self.busy.release()

    def stand(self, run: Any) -> bool:
        """Tell whether settings and weights still are those that all is bound to."""
        theirs = map(run.weights.get, self.names)
        return self.config is run.config and all(map(is_, theirs, self.weights))

    def bind(self, run: Any, x: Array) -> None:
        """Bind the first layers for tokens like x (1, E), up to one that has something without a
        kernel.
        """
        config, layers = run.config, range(run.config.num_hidden_layers)
        self.config, self.layers, self.aside = None, [], 0  # unless all of this is done
        self.caches.clear()
        self.names = names_of(layers)
        self.weights = [run.weights.get(name) for name in self.names]
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.now = np.array([0, together(1, heads, groups)], np.int64)
        self.x, self.turns = np.zeros_like(x), np.zeros((2, 1, 1, config.head_dim // 2), WIDE)
        # In one array each: after a token has gone through, little is left in the cache.
        self.outs = np.zeros((len(layers), *x.shape), x.dtype)
        self.lost = np.zeros((len(layers), len(MODULES)), np.uint8)
        stream = self.x
        with suppress(NoKernelError):
            for layer, out, lost in zip(layers, self.outs, self.lost, strict=True):
                self.layers.append(Layer(run, layer, stream, self.turns, out, lost))
                stream = out
        self.config = config

    def through(self, run: Any, x: Hidden, frequencies: Frequencies) -> list[Hidden]:
        """Run the layers that are bound, and note one behind which they may not be run for now."""
        layers = self.layers[: self.good] if self.aside else self.layers
        self.aside = max(self.aside - 1, 0)
        held = self.held(run, layers) if layers else None
        if held is None:
            return []
        self.x[...], self.now[HELD] = x[0], run.cache.positions.length
        factor = self.config.rope_scaling.attention_factor
        self.turns[...] = turns_at(run.positions, frequencies, factor)
        played(held.jobs[: held.ends[len(layers)]])
        done = self.done(len(layers))
        run.cache.reach(done)
        return [*self.outs[:done, None].copy()]

    def done(self, layers: int) -> int:
        """Return how many of the layers that ran lost nothing, up to the first that did."""
        lost = self.lost[:layers]
        if not lost.any():
            return layers
        self.good, self.aside = int(lost.any(axis=1).argmax()), ASIDE
        return self.good

    def held(self, run: Any, layers: Sequence[Layer]) -> Held | None:
        """Make room in the cache for the token; return all bound to it, None if that cannot be.

        As buffers grow, the old ones are let go one by one: not both of all layers are held. The
        token itself is held once all has run; who goes on behind a break is refused.
        """
        known, buffers = self.caches.get(run.cache), []
        if known is not None and known.reserved(run.cache, len(layers)):
            return known
        del known
        self.caches.pop(run.cache, None)
        for index, layer in enumerate(layers):
            pair = run.cache.reserve(run.ops, index, layer.keys, layer.values)
            if pair is None:
                return None
            buffers.append(pair)
        self.caches[run.cache] = known = Held(layers, buffers, self.now)
        return known
