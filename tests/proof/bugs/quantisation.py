"""Bugs of reading packed weights. Each is a step of unpacking that goes wrong."""

import numpy as np

from tests.proof import traits
from tests.proof.packed import Codes
from tests.proof.registry import bug

ORDER, VALUE, SCALES, TILES = "code order", "code value", "scales and biases", "tiles"


def packed_bug(id: str, site: str):
    return bug(id, site=site, stage="packed", when=traits.anywhere)


def reordered(codes: Codes, order: list[int]) -> Codes:
    """Permute the codes inside of every run of as many as `order` names."""
    runs = codes.codes.reshape(len(codes.codes), -1, len(order))
    return codes.but(codes=runs[..., order].reshape(codes.codes.shape))


@packed_bug("q4-nibble-order", ORDER)
def nibbles_of_ggml(codes: Codes) -> Codes:
    """Take low nibbles for the first half of a block of 32, high ones for the second."""
    return reordered(codes, [*range(0, 32, 2), *range(1, 32, 2)])


@bug(
    "awq-nibble-order",
    site=ORDER,
    stage="packed",
    when=traits.anywhere,
    variants={
        "taken in this order": {"order": [0, 2, 4, 6, 1, 3, 5, 7]},
        "put in this order": {"order": [0, 4, 1, 5, 2, 6, 3, 7]},
    },
)
def nibbles_of_awq(codes: Codes, order: list[int]) -> Codes:
    return reordered(codes, order)


@packed_bug("q4-signedness", VALUE)
def signed(codes: Codes) -> Codes:
    return codes.but(codes=np.where(codes.codes >= 8, codes.codes - 16, codes.codes))


@packed_bug("affine-bias-dropped", SCALES)
def bias_dropped(codes: Codes) -> Codes:
    return codes.but(biases=np.zeros_like(codes.biases))


@packed_bug("affine-zero-point-style", SCALES)
def bias_as_zero_point(codes: Codes) -> Codes:
    return codes.but(biases=-codes.scales * codes.biases)


@packed_bug("gptq-zero-plus-one", SCALES)
def zero_plus_one(codes: Codes) -> Codes:
    return codes.but(biases=codes.biases - codes.scales)


@packed_bug("quant-bits-global", SCALES)
def other_group_size(codes: Codes) -> Codes:
    """Use the group size of another part of the file, twice as wide: half of the scales is read."""
    groups = np.arange(codes.scales.shape[1]) // 2
    return codes.but(scales=codes.scales[:, groups], biases=codes.biases[:, groups])


@packed_bug("quant-first-block-only", TILES)
def first_block(codes: Codes) -> Codes:
    return kept(codes, slice(None, 1))


@packed_bug("qmm-tail-tile", TILES)
def tail_dropped(codes: Codes) -> Codes:
    return kept(codes, slice(None, -1))


def kept(codes: Codes, groups: slice) -> Codes:
    """Leave nought in all groups but these."""
    alive = np.zeros_like(codes.scales)
    alive[:, groups] = 1
    return codes.but(scales=codes.scales * alive, biases=codes.biases * alive)
