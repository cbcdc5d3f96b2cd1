"""The port runs another quantisation than MODEL: no bug, but nothing else can be said before it.

Each entry packs MODEL's own weights the way a converter would have. `self_attn.q_proj` and its like
then differ by what packing loses, and by nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.packing import affine, minifloat, q4_0, q8_0
from lockstep.parity.faults.tensors import PACKED, Change, Kept, reweighted
from lockstep.reference.checkpoint.checkpoint import StoredFormat


def repacked(pack: Any, group_size: int, *places: str) -> Rewrite:
    """Pack the dense matrices whose rows are whole groups."""

    def fits(stored: StoredFormat) -> bool:
        return not stored.packed and stored.shape[-1] % group_size == 0

    change: Change = Kept(lambda ops, weight: pack(weight))
    return reweighted(change, fits, *places, turn=PACKED)


def entry(name: str, words: str, **variants: Rewrite) -> Fault:
    return Fault(
        id=f"port-quantised-{name}",
        wrong=f"the port's matrices are MODEL's, packed as {words}",
        right="the matrices as MODEL has them",
        symptom="none of its own: what differs is what packing loses",
        where="the first projection, or the embedding",
        fix="compare with a MODEL of the same quantisation, or run the port on MODEL's own weights",
        convention=True,
        variants={variant.replace("_", " "): rewrite for variant, rewrite in variants.items()},
    )


def of_affine(bits: int, group_size: int) -> Fault:
    pack = partial(affine, bits=bits, group_size=group_size)
    words = f"MLX's {bits} bits in groups of {group_size}"
    return entry(f"affine-{bits}-{group_size}", words, **{"": repacked(pack, group_size)})


def of_mode(mode: str, *, to_even: bool) -> Rewrite:
    return repacked(partial(minifloat, mode=mode, to_even=to_even), 32)


FAULTS = (
    *(of_affine(bits, group_size) for bits in (4, 8) for group_size in (64, 32, 128)),
    entry(
        "mxfp4",
        "mxfp4",
        ties_to_even=of_mode("mxfp4", to_even=True),
        ties_to_the_smaller=of_mode("mxfp4", to_even=False),
    ),
    entry("mxfp8", "mxfp8", **{"": of_mode("mxfp8", to_even=True)}),
    entry("q8-0", "GGUF's Q8_0", **{"": repacked(q8_0, 32)}),
    entry("q4-0", "GGUF's Q4_0", **{"": repacked(q4_0, 32)}),
)
