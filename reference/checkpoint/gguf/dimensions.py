"""The column-major trap: which way round GGUF lists the sizes of a tensor.

GGUF lists the axis whose neighbours lie side by side in the file first (ggml calls the sizes
`ne[0]`, `ne[1]`, ...), NumPy and PyTorch list it last. A weight of PyTorch's shape (outputs,
inputs) stands in a GGUF file as [inputs, outputs], and its bytes are the same in both.

So the list is reversed, and nothing else happens. It is tempting to read [inputs, outputs] as
"stored transposed" and to transpose the data: a square matrix then passes every check of shapes,
and the model speaks nonsense. This file is the only place where the order is turned around.
"""

from __future__ import annotations

from collections.abc import Sequence


def shape_listed_as(listed: Sequence[int]) -> tuple[int, ...]:
    """Return the shape, slowest axis first, of a tensor whose sizes a file lists fastest first."""
    return tuple(reversed(listed))
