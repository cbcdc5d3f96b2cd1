"""Every operation keeps the promise of its signature, for sizes drawn for its letters. By law."""

import typing
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference import ops as reference_ops
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from tests.draws import normal, packed_matrix
from tests.ops_backends import DTYPES, FAST_DTYPES
from tests.sampled import sampled

# What signatures leave open: options, and the shapes that follow from several letters at once.
OPTIONS = {
    "eps": 1e-6,
    "scale": 0.5,
    "by": 0.5,
    "cap": 30.0,
    "masked_row": "zero",
    "window": 2,
    "theta": 100.0,
    "rows": slice(None),
    "block": 1,
    "blocks": 2,
    "normalize": True,
    "factor": 2.0,
    "partial_rotary_factor": 0.5,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
    "original_max_position_embeddings": 16,
}
OF_SIZES = {
    "heads": lambda size: size["H"],
    "per_token": lambda size: size["X"],
    "dims": lambda size: size["D"],
    "short_factor": lambda size: (1.0,) * size["D/2"],
    "long_factor": lambda size: (4.0,) * size["D/2"],
}
WHOLE = ("tokens", "positions", "query_positions", "key_positions", "lengths")
PROMISED = {  # where `Hidden` or `Inputs` stands for a product, or a row, of the letters
    "column_block": lambda size: (size["B"], size["L"], size["K"] // OPTIONS["blocks"]),
    "concatenate": lambda size: (size["B"], size["G"], size["S"] + size["L"], size["D"]),
    **dict.fromkeys(
        ("dequantize", "dequantize_affine", "dequantize_blocks", "dequantize_minifloat"),
        lambda size: (size["N"], size["K"]),
    ),
    "merge_heads": lambda size: (size["B"], size["L"], size["H"] * size["D"]),
    "take_rows": lambda size: (size["B"], 1, size["E"]),
}


@st.composite
def sizes(draw) -> dict[str, int]:
    """Draw a size for each letter: no tokens and no keys too, heads that share, D even."""
    some, maybe = st.integers(1, 3), st.integers(0, 4)
    size = {letter: draw(some) for letter in "BEGVNFXR"} | {letter: draw(maybe) for letter in "LS"}
    size |= {"H": size["G"] * draw(some), "D": 2 * draw(some), "K": 32 * draw(some)}
    return size | {"1": 1, "D/2": size["D"] // 2}


def hints(op: str) -> dict[str, typing.Any]:
    return typing.get_type_hints(getattr(reference_ops, op), include_extras=True)


def letters(hint) -> list[str] | None:
    """Return the letters of an annotated array, or None for what is no array."""
    parts = [hint, *typing.get_args(hint)]
    found = [part.__metadata__[0] for part in parts if hasattr(part, "__metadata__")]
    return found[0].split() if found else None


def argument(backend, name: str, hint, size: Mapping[str, int], dtype):
    """Make one argument: an array of the promised shape, a mask, an option."""
    shape = [size[letter] for letter in letters(hint) or []]
    if name == "mask":
        places = np.zeros((size["B"], size["L"]), int), np.zeros((size["B"], size["S"]), int)
        return backend.causal_mask(*places, window=None)
    if name in WHOLE or name == "index":
        stop = {"tokens": size["V"], "index": size["L"]}.get(name, 9)
        return np.random.default_rng(0).integers(0, stop, shape)
    if name == "frequencies":
        return np.ones(shape)
    if hint is BlockTensor:
        return BlockTensor(np.zeros((size["N"], size["K"] // 32 * 34), np.uint8), "Q8_0")
    if hint is MinifloatTensor:
        codes = np.zeros((size["N"], size["K"] // 8), np.uint32)
        return MinifloatTensor(codes, np.zeros((size["N"], size["K"] // 32), np.uint8), "mxfp4")
    if name == "weight" and letters(hint) is None:
        return packed_matrix(0, size["N"], size["K"], bits=4, group=32)[0]
    if letters(hint) is not None:
        return normal(0, *shape, dtype=dtype)
    return dtype if name == "dtype" else OPTIONS.get(name) or OF_SIZES[name](size)


def arguments(backend, op: str, size: Mapping[str, int], dtype) -> dict[str, typing.Any]:
    kinds = {name: hint for name, hint in hints(op).items() if name != "return"}
    return {name: argument(backend, name, hint, size, dtype) for name, hint in kinds.items()}


def promise(op: str, size: Mapping[str, int]) -> tuple[int, ...]:
    if op in PROMISED:
        return PROMISED[op](size)
    return tuple(size[letter] for letter in letters(hints(op)["return"]))


def adapted(op: str, size: dict[str, int]) -> dict[str, int]:
    """Let letters agree where one operation uses two names for one thing."""
    if op == "split_heads":
        return size | {"K": size["H"] * size["D"]}
    if op == "embedding":  # the table is a weight of V rows and E columns
        return size | {"N": size["V"], "K": size["E"]}
    if op == "rope_frequencies_dynamic":  # one pair alone cannot slow down
        return size | {"D": 2 * size["D"], "D/2": 2 * size["D/2"]}
    return size | {"L": max(size["L"], 1)} if op == "take_rows" else size


@sampled(26, "cpu-rope_frequencies_longrope")
@pytest.mark.parametrize("op", reference_ops.__all__)
@settings(max_examples=15)
@given(size=sizes(), name=st.sampled_from(FAST_DTYPES))
def test_results_have_the_promised_shape(backend, op, size, name):
    """By law: the letters of the result, and the dtype of the first argument."""
    size, dtype = adapted(op, size), DTYPES[name]
    result = getattr(backend, op)(**arguments(backend, op, size, dtype))
    if op == "causal_mask":
        result = backend.seen(result)
    else:
        exact = op.startswith("rope_frequencies")
        assert result.dtype == (np.float64 if exact else dtype)
    assert result.shape == promise(op, size)


@pytest.mark.parametrize("op", reference_ops.__all__)
def test_arguments_are_left_alone(backend, op):
    """By law: an operation writes to nothing that it is given."""
    size = {"B": 2, "E": 4, "G": 2, "V": 5, "N": 3, "L": 3, "S": 4, "H": 4, "D": 4, "K": 32}
    size = adapted(op, size | {"1": 1, "D/2": 2, "F": 2, "X": 3, "R": 2})
    made, kept = (arguments(backend, op, size, DTYPES["float32"]) for _ in range(2))
    getattr(backend, op)(**made)
    for name, value in made.items():
        for one, other in zip(arrays_of(value), arrays_of(kept[name]), strict=True):
            np.testing.assert_array_equal(one, other)


def arrays_of(value) -> list[np.ndarray]:
    if isinstance(value, QuantizedTensor):
        return [value.packed, value.scales, value.biases]
    if isinstance(value, MinifloatTensor):
        return [value.packed, value.scales]
    return [value] if isinstance(value, np.ndarray) else []


@pytest.mark.parametrize("op", reference_ops.__all__)
def test_backends_say_the_same_letters(backend, op):
    """By law: the signatures of `fast` promise what those of the reference do."""
    own = typing.get_type_hints(getattr(backend.ops, op), include_extras=True)
    for name, hint in hints(op).items():
        if letters(hint) != ["B", "1", "L", "S"]:  # a mask of `fast` is an object of its own
            assert letters(own[name]) == letters(hint), name


def test_a_packed_weight_keeps_the_promise(backend):
    """By hand: the one argument that is an array or a packed matrix."""
    packed, _ = packed_matrix(0, 3, 32, bits=4, group=32)
    assert isinstance(packed, QuantizedTensor) and packed.shape == (3, 32)
    assert backend.linear(normal(0, 2, 5, 32), packed, None).shape == (2, 5, 3)
