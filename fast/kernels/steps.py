"""Kernels that are bound to their arrays once, and then run one after another by one call."""

import numpy as np

from lockstep.fast.kernels.activate import COST, activate, form
from lockstep.fast.kernels.few import PLACE, few_of, fits, multiply_few
from lockstep.fast.kernels.heads import COST as COST_OF_HEADS
from lockstep.fast.kernels.heads import normalize_and_turn
from lockstep.fast.kernels.kernel import Kept
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import multiply_alone
from lockstep.fast.kernels.memory import LINE
from lockstep.fast.kernels.normalize import normalize
from lockstep.fast.kernels.plus import add_rows
from lockstep.fast.kernels.product import always_here, sizes, stored
from lockstep.fast.kernels.rows import fitting
from lockstep.fast.kernels.turn import turn
from lockstep.fast.shapes import Array, Bias, Gain, Heads, Keys, Queries, Weight


class NoKernelError(Exception):
    """Something has no kernel, or takes other steps than that."""


def vector(width: int) -> Array:
    return np.zeros((1, width), np.float32)


class Steps:
    """Kernels over one token's vectors (1, K): those that operations start one by one.

    A method adds one and returns where its result will lie. Every array is written before it is
    read, so nothing of an earlier run is left. Once all ran, `lost`, an octet for each product
    there may be, says which of them have to be done in another way.
    Raises: NoKernelError where there is no kernel.
    """

    def __init__(self, lost: Array) -> None:
        self.kept: list[Kept] = []
        self.lost, self.products = lost, 0

    def normed(self, x: Array, gain: Gain, eps: float) -> Array:
        if not fitting(x, gain):
            raise NoKernelError
        out = vector(x.shape[1])
        self.kept.append(normalize.kept(x.size, 1, x[None], gain, np.float32(eps), out[None]))
        return out

    def product(self, x: Array, weight: Weight, bias: Bias | None) -> Array:
        """Multiply by a matrix, in digits if its codes lie for that, and add its bias."""
        lying = not isinstance(weight, np.ndarray) or weight.flags.c_contiguous  # else it is copied
        found = stored(weight) if lying and always_here(weight) else None
        if found is None or weight.shape[1] != x.shape[1] or not weight.shape[0]:
            raise NoKernelError
        of, matrix = found
        out = vector(weight.shape[0])
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
        return out if bias is None else self.sum(out, bias[None])

    def sum(self, x: Array, y: Array, out: Array | None = None) -> Array:
        if x.shape != y.shape or not fitting(x, y):
            raise NoKernelError
        out = vector(x.shape[1]) if out is None else out
        self.kept.append(add_rows.kept(x.size, 1, x, y, out))
        return out

    def gated(self, x: Array, up: Array) -> Array:
        """Multiply the SiLU of x by `up` of the same shape."""
        if x.shape != up.shape or not fitting(x, up):
            raise NoKernelError
        out = vector(x.shape[1])
        self.kept.append(activate.kept(COST * x.size, 1, form(False, True), x, up, out))
        return out

    def turned(self, x: Heads, turns: Array) -> Queries:
        """Turn heads (1, 1, H, D) by cosines and sines (2, 1, 1, D/2); return (1, H, 1, D)."""
        heads, width = x.shape[2:]
        if width % (2 * WIDTH):
            raise NoKernelError
        out = np.zeros((1, heads, 1, width), np.float32)
        self.kept.append(turn.kept(2 * x.size, heads, x.swapaxes(1, 2), turns, out))
        return out

    def normed_and_turned(
        self, queries: Heads, keys: Heads, gains: tuple[Gain, Gain], eps: float, turns: Array
    ) -> tuple[Queries, Keys]:
        """Apply norms of queries (1, 1, H, D) and keys (1, 1, G, D), and turn them."""
        heads, width = queries.shape[2:]
        if width % (2 * WIDTH) or not fitting(*gains):
            raise NoKernelError
        out, other = (np.zeros((1, one.shape[2], 1, width), np.float32) for one in (queries, keys))
        given = queries, keys, *gains, np.float32(eps), turns, out, other
        size, places = queries.size + keys.size, heads + keys.shape[2]
        self.kept.append(normalize_and_turn.kept(COST_OF_HEADS * size, places, *given))
        return out, other
