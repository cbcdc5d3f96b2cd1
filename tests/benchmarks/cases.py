"""Operations at the sizes of Qwen3-0.6B, for a prompt of 128 tokens and for one token behind it."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from lockstep.reference import ops
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from tests.draws import normal, packed_matrix
from tests.ops_backends import DTYPES

WIDTH, INNER, HEADS, GROUPS, HEAD = 1024, 3072, 16, 8, 128
PROMPT, EXPERTS, VISITED = 128, 4, 2
FREQUENCIES = ops.rope_frequencies(theta=1e6, dims=HEAD)

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Case(NamedTuple):
    """An operation, what it is given for so many tokens, and how near its result has to be."""

    name: str
    op: str
    given: Callable[[int], Call]
    kind: str


@cache
def packed(rows: int, columns: int) -> Any:
    return packed_matrix(1, rows, columns, bits=4, group=64, dtype=DTYPES["bfloat16"])[0]


@cache
def eight_bits(rows: int, columns: int) -> BlockTensor:
    blocks = np.random.default_rng(2).integers(0, 256, (rows * columns // 32, 34), np.uint8)
    blocks[:, :2] = np.full((len(blocks), 1), 0.01, "<f2").view(np.uint8)
    return BlockTensor(blocks.reshape(rows, -1), "Q8_0")


def product(weight: Callable[[int, int], Any]) -> Callable[[int], Call]:
    return lambda tokens: ((normal(0, 1, tokens, WIDTH), weight(INNER, WIDTH), None), {})


def hidden(count: int, width: int = WIDTH, **options: Any) -> Callable[[int], Call]:
    def given(tokens: int) -> Call:
        return tuple(normal(seed, 1, tokens, width) for seed in range(count)), options

    return given


def normed(tokens: int) -> Call:
    return (normal(0, 1, tokens, WIDTH), normal(1, WIDTH)), {"eps": 1e-6}


def layer_normed(tokens: int) -> Call:
    return (normal(0, 1, tokens, WIDTH), normal(1, WIDTH), normal(2, WIDTH)), {"eps": 1e-5}


def turned(tokens: int) -> Call:
    places = np.arange(PROMPT, PROMPT + tokens)[None]
    return (normal(0, 1, HEADS, tokens, HEAD), places, FREQUENCIES), {"factor": 1.0}


def attended(tokens: int) -> Call:
    """Keys are there for the tokens and, behind a prompt, for that."""
    keys = tokens if tokens > 1 else PROMPT + 1
    sizes = (HEADS, tokens), (GROUPS, keys), (GROUPS, keys)
    rows = (normal(seed, 1, *size, HEAD) for seed, size in enumerate(sizes))
    places = np.arange(keys)[None]
    return (*rows, (places[:, -tokens:], places)), {"scale": HEAD**-0.5, "masked_row": "uniform"}


def routed(tokens: int) -> Call:
    logits = normal(3, 1, tokens, EXPERTS)
    routing = ops.top_k_routing(logits, per_token=VISITED, normalize=True)
    stacks = (normal(4, EXPERTS, 128, WIDTH), normal(5, EXPERTS, 128, WIDTH),
              normal(6, EXPERTS, WIDTH, 128))  # fmt: skip
    return (normal(0, 1, tokens, WIDTH), routing, *stacks), {"per_token": VISITED}


CASES = (
    Case("linear float32", "linear", product(partial(normal, 1)), "sum"),
    Case("linear 4 bits", "linear", product(packed), "sum"),
    Case("linear Q8_0", "linear", product(eight_bits), "sum"),
    Case("rms_norm", "rms_norm", normed, "pointwise"),
    Case("layer_norm", "layer_norm", layer_normed, "sum"),
    Case("rope", "rope", turned, "rotation"),
    Case("attention", "attention", attended, "sum"),
    Case("swiglu", "swiglu", hidden(2, INNER), "sum"),
    Case("geglu", "geglu", hidden(2, INNER), "sum"),
    Case("gelu_erf", "gelu_erf", hidden(1, INNER), "sum"),
    Case("add", "add", hidden(2), "pointwise"),
    Case("experts", "experts", routed, "sum"),
)
