"""The order of the rows of Llama's query and key projections.

Rotary embedding turns pairs of numbers of a head. Hugging Face pairs number j with number j + D/2,
llama.cpp's `llama` architecture pairs 2j with 2j + 1. So that both give the same products of
queries and keys, llama.cpp's converter moves the rows of `q_proj` and `k_proj`: within each head,
row t * D/2 + j goes to 2j + t. Here each goes back.

    stored   0  1  2  3  4  5 ...       one head of D rows
    comes    0 D/2 1 D/2+1 2 D/2+2 ...  from row

Only whole rows move. Blocks lie within a row, so packed rows move as they are, and nothing is
rounded. Other architectures (Qwen3 among them) are stored in Hugging Face's order.
"""

from __future__ import annotations

import re

import numpy as np

from lockstep.reference.checkpoint.block_tensor import BlockTensor

QUERIES_OR_KEYS = re.compile(r"model\.layers\.[0-9]+\.self_attn\.([qk])_proj\.(weight|bias)")


def halves_first(tensor: np.ndarray | BlockTensor, width: int) -> np.ndarray | BlockTensor:
    """Return rows of whole heads of `width`, as Hugging Face orders them."""
    count = tensor.shape[0]
    rows = np.arange(count).reshape(count // width, width // 2, 2)  # head, pair, which of the pair
    return tensor[rows.swapaxes(1, 2).reshape(-1)]


def heads_around(start: int, stop: int, width: int) -> tuple[int, int]:
    """Return the rows of the whole heads that rows start to stop are in."""
    return start // width * width, -(-stop // width) * width
