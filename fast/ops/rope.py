import mlx.core as mx
import numpy as np

from lockstep.fast.shapes import Array, Frequencies, Positions, Queries


def rope(x: Queries, positions: Positions, frequencies: Frequencies, *, factor: float) -> Queries:
    """Turn pairs of each head's dimensions by an angle that grows with the position.

    Differs from `reference.ops.rope`: angles are float32; on a CPU half precision is computed in
    half precision, unless there is a factor: that comes after a turn in float32. Rows that count up
    from one position are one kernel; any other order is turned as a batch of single tokens.
    """
    if not positions.size:
        return x
    if factor != 1:  # MLX would round the factor itself to half precision
        wide = rope(x.astype(mx.float32), positions, frequencies, factor=1.0)
        return (wide * factor).astype(x.dtype)
    if frequencies.ndim == 1:
        return turned(x, positions, frequencies)
    rows = [slice(row, row + 1) for row in range(len(x))]
    return mx.concatenate([turned(x[row], positions[row], frequencies[row][0]) for row in rows])


def turned(x: Array, positions: Positions, frequencies: Frequencies) -> Array:
    with np.errstate(divide="ignore", over="ignore"):
        periods = mx.array((1 / frequencies).astype(np.float32))
    if (np.diff(positions, axis=1) == 1).all():
        return rotate(x, periods, mx.array(positions[:, 0].copy()))
    batch, heads, length, width = x.shape
    singles = x.swapaxes(1, 2).reshape(batch * length, heads, 1, width)
    out = rotate(singles, periods, mx.array(positions.flatten()))
    return out.reshape(batch, length, heads, width).swapaxes(1, 2)


def rotate(x: Array, periods: Array, offset: Array) -> Array:
    return mx.fast.rope(
        x, x.shape[-1], traditional=False, base=None, scale=1.0, offset=offset, freqs=periods
    )
