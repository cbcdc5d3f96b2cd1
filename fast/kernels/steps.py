"""Kernels that are bound to their arrays once, and then run one after another by one call."""

import numpy as np

from lockstep.fast.kernels.activate import COST, activate, form
from lockstep.fast.kernels.alike import alike
from lockstep.fast.kernels.attend import WIDE
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.few import PLACE, few_of, fits, multiply_few
from lockstep.fast.kernels.heads import COST as COST_OF_HEADS
from lockstep.fast.kernels.heads import normalize_and_turn
from lockstep.fast.kernels.kernel import Kept
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import multiply_alone
from lockstep.fast.kernels.memory import LINE, seen
from lockstep.fast.kernels.normalize import normalize
from lockstep.fast.kernels.plus import add_rows
from lockstep.fast.kernels.product import always_here, sizes, stored
from lockstep.fast.kernels.recast import recast
from lockstep.fast.kernels.turn import turn
from lockstep.fast.shapes import Array, Bias, Gain, Heads, Keys, Queries, Weight


class NoKernelError(Exception):
    """Something has no kernel, or takes other steps than that."""


def fitting(*arrays: Array) -> list[Array]:
    """Return arrays as kernels take them. Raises: NoKernelError if none takes them together."""
    given = alike(*arrays)
    if given is None:
        raise NoKernelError
    return given


class Steps:
    """Kernels over one token's vectors (1, K): those that operations start one by one.

    Vectors are of one dtype, float32 or bfloat16; products and contexts are float32 until they are
    rounded. A method adds a kernel or more, and returns where the result will lie. Every array is
    written before it is read, so nothing of an earlier run is left. Once all ran, `lost`, an octet
    for each product there may be, says which of them have to be done in another way.
    Raises: NoKernelError where there is no kernel.
    """

    def __init__(self, lost: Array, dtype: np.dtype) -> None:
        self.kept: list[Kept] = []
        self.lost, self.products, self.dtype = lost, 0, dtype

    def room(self, *shape: int) -> Array:
        return np.zeros(shape, self.dtype)

    def ours(self, parameter: Array) -> Array:
        """Return a gain or a bias in the dtype of the vectors."""
        with np.errstate(over="ignore", under="ignore"):
            return parameter.astype(self.dtype, copy=False)

    def normed(self, x: Array, gain: Gain, eps: float) -> Array:
        given, out = fitting(x, self.ours(gain)), self.room(*x.shape)
        self.kept.append(
            normalize.kept(x.size, 1, given[0][None], given[1], np.float32(eps), seen(out)[None])
        )
        return out

    def recast(self, x: Array, dtype: np.dtype) -> Array:
        """Widen a vector, which is exact, or round it; the same array if it is of that dtype."""
        if x.dtype == dtype:
            return x
        out = np.zeros(x.shape, dtype)
        self.kept.append(recast.kept(x.size, 1, seen(x), seen(out)))
        return out

    def rounded(self, x: Array) -> Array:
        """Round a vector that was computed in float32 as the others are."""
        return self.recast(x, self.dtype)

    def product(self, x: Array, weight: Weight, bias: Bias | None) -> Array:
        """Multiply by a matrix, in digits if its codes lie for that, and add its bias."""
        lying = not isinstance(weight, np.ndarray) or weight.flags.c_contiguous  # else it is copied
        found = stored(weight) if lying and always_here(weight) else None
        if found is None or weight.shape[1] != x.shape[1] or not weight.shape[0]:
            raise NoKernelError
        x, out = self.recast(x, WIDE), np.zeros((1, weight.shape[0]), WIDE)
        self.multiply(x, *found, out)
        y = self.rounded(out)
        return y if bias is None else self.sum(y, self.ours(bias)[None])

    def multiply(self, x: Array, of: Constants, matrix: tuple[Array, ...], out: Array) -> None:
        """Bind the product of a vector and a matrix that is stored so, both in float32."""
        if fits(of, x.shape[1]):
            few, own = few_of(of, x.shape[1]), slice(self.products, self.products + 1)
            self.products += 1
            room = np.zeros(LINE + few.octets, np.uint8)
            given = few.order, few.zero, room, self.lost[own], x, few.of, matrix, out
            self.kept.append(multiply_few.kept(*sizes(x, out, PLACE), *given))
        elif of.numbers.get("parts", 1) == 1:
            self.kept.append(multiply_alone.kept(*sizes(x, out), of, x, matrix, out))
        else:  # NumPy would have to sort the columns
            raise NoKernelError

    def sum(self, x: Array, y: Array, out: Array | None = None) -> Array:
        if x.shape != y.shape:
            raise NoKernelError
        given, to = fitting(x, y), self.room(*x.shape) if out is None else out
        self.kept.append(add_rows.kept(x.size, 1, *given, seen(to)))
        return to

    def gated(self, x: Array, up: Array) -> Array:
        """Multiply the SiLU of x by `up` of the same shape."""
        if x.shape != up.shape:
            raise NoKernelError
        given, out = fitting(x, up), self.room(*x.shape)
        self.kept.append(activate.kept(COST * x.size, 1, form(False, True), *given, seen(out)))
        return out

    def turned(self, x: Heads, turns: Array) -> Queries:
        """Turn heads (1, 1, H, D) by cosines and sines (2, 1, 1, D/2); return (1, H, 1, D)."""
        heads, width = x.shape[2:]
        if width % (2 * WIDTH):
            raise NoKernelError
        out = self.room(1, heads, 1, width)
        given = *fitting(x.swapaxes(1, 2)), turns, seen(out)
        self.kept.append(turn.kept(2 * x.size, heads, *given))
        return out

    def normed_and_turned(
        self, queries: Heads, keys: Heads, gains: tuple[Gain, Gain], eps: float, turns: Array
    ) -> tuple[Queries, Keys]:
        """Apply norms of queries (1, 1, H, D) and keys (1, 1, G, D), and turn them."""
        heads, width = queries.shape[2:]
        if width % (2 * WIDTH):
            raise NoKernelError
        out, other = (self.room(1, one.shape[2], 1, width) for one in (queries, keys))
        given = *fitting(queries, keys, *map(self.ours, gains)), np.float32(eps), turns
        size, places = queries.size + keys.size, heads + keys.shape[2]
        products = COST_OF_HEADS * size
        self.kept.append(normalize_and_turn.kept(products, places, *given, seen(out), seen(other)))
        return out, other
