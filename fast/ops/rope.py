import mlx.core as mx
import numpy as np

from lockstep.fast.shapes import Array, Frequencies, Positions, Queries


def rope(x: Queries, positions: Positions, frequencies: Frequencies) -> Queries:
    """Turn pairs of each head's dimensions by an angle that grows with the position.

    Differs from `reference.ops.rope`: angles are float32; on a CPU half precision is computed in
    half precision. Rows that count up from one position are one kernel; any other order is
    turned as a batch of single tokens.
    """
    with np.errstate(divide="ignore", over="ignore"):
        periods = mx.array((1 / frequencies).astype(np.float32))
    if not positions.size:
        return x
    if (np.diff(positions, axis=1) == 1).all():
        return rotate(x, periods, mx.array(positions[:, 0].copy()))
    batch, heads, length, width = x.shape
    singles = x.swapaxes(1, 2).reshape(batch * length, heads, 1, width)
    turned = rotate(singles, periods, mx.array(positions.flatten()))
    return turned.reshape(batch, length, heads, width).swapaxes(1, 2)


def rotate(x: Array, periods: Array, offset: Array) -> Array:
    return mx.fast.rope(
        x, x.shape[-1], traditional=False, base=None, scale=1.0, offset=offset, freqs=periods
    )
