"""The port runs another quantisation than MODEL: no bug, but nothing else can be said before it.

Each entry packs MODEL's own weights the way a converter would have, or rounds them, or all that is
stored, to the half precision that a port keeps them in while it computes in float32.
`self_attn.q_proj` and its like then differ by what that loses, and by nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.packing import affine, minifloat, q4_0, q8_0
from lockstep.parity.faults.rewrites import NORMS, only
from lockstep.parity.faults.tensors import MATRICES, PACKED, Change, Kept, dense, reweighted
from lockstep.parity.graph import Call, Graph
from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.checkpoint import StoredFormat
from lockstep.reference.precision import dtype_named, rounded

STORED = {"bfloat16": "BF16", "float16": "F16"}  # half precisions, and what files call them


def repacked(pack: Any, group_size: int = 1, *places: str) -> Rewrite:
    """Pack the dense matrices whose rows are whole groups; what another bug reads in the place of
    one may be packed.
    """

    def fits(stored: StoredFormat) -> bool:
        return not stored.packed and stored.shape[-1] % group_size == 0

    def packed(ops: Any, weight: Any) -> Any:
        return pack(dense(ops, weight) if isinstance(weight, Packed) else weight)

    change: Change = Kept(packed)
    return reweighted(change, fits, *places, turn=PACKED)


def entry(name: str, words: str, variants: dict[str, Rewrite], what: str = "matrices") -> Fault:
    return Fault(
        id=f"port-quantised-{name}",
        wrong=f"the port's {what} are MODEL's, {words}",
        right=f"the {what} as MODEL has them",
        symptom="none of its own: what differs is what that loses",
        where="the first projection, or the embedding",
        fix="compare with a MODEL of the same quantisation, or run the port on MODEL's own weights",
        convention=True,
        variants=variants,
    )


def of_affine(bits: int, group_size: int) -> Fault:
    pack = partial(affine, bits=bits, group_size=group_size)
    words = f"packed as MLX's {bits} bits in groups of {group_size}"
    return entry(f"affine-{bits}-{group_size}", words, {"": repacked(pack, group_size)})


def of_mode(mode: str, *, to_even: bool) -> Rewrite:
    return repacked(partial(minifloat, mode=mode, to_even=to_even), 32)


def cut_off(weight: np.ndarray) -> np.ndarray:
    """Keep the upper half of each float32's bits, which rounds towards 0."""
    bits = np.ascontiguousarray(weight, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def of_half(name: str) -> Fault:
    """Round what is stored in another float type; to bfloat16 some do it by cutting bits off."""
    half, words = dtype_named(name), f"rounded to {name}, in which the port keeps them"
    forms = narrowed(name, lambda ops, weight: rounded(weight, half))
    if name == "bfloat16":
        shorter = narrowed(name, lambda ops, weight: cut_off(weight))
        forms |= {f"{form}, cut off": rewrite for form, rewrite in shorter.items()}
    return entry(name, words, forms, "weights")


def narrowed(name: str, narrow: Change) -> dict[str, Rewrite]:
    """Return the forms of a port's weights: matrices alone, all but norms, or everything narrow."""

    def wider(stored: StoredFormat) -> bool:
        return not stored.packed and stored.dtype != STORED[name]

    def as_wide(ops: Any, weight: np.ndarray) -> np.ndarray:
        return rounded(narrow(ops, weight), weight.dtype)

    matrices = reweighted(Kept(narrow), wider, turn=PACKED)

    def everything(call: Call, graph: Graph) -> Call | None:
        new = matrices(call, graph) or call
        for index in range(len(call.inputs)):
            stored = graph.stored.get(call.tensor(index) or "")
            if index not in MATRICES.get(call.op, ()) and stored is not None and wider(stored):
                new = new.with_changed(index, as_wide)
        return None if new is call else new

    but_norms = only(lambda call, graph: call.op not in NORMS, everything)
    unpacked = reweighted(
        Kept(lambda ops, weight: narrow(ops, dense(ops, weight))),
        lambda stored: stored.packed,
        turn=PACKED,
    )
    return {
        "matrices alone": matrices,
        "all but norms": but_norms,
        "everything": everything,
        "packed ones, unpacked": unpacked,
    }


FAULTS = (
    *(of_affine(bits, group_size) for bits in (4, 8) for group_size in (64, 32, 128)),
    entry(
        "mxfp4",
        "packed as mxfp4",
        {
            "ties to even": of_mode("mxfp4", to_even=True),
            "ties to the smaller": of_mode("mxfp4", to_even=False),
        },
    ),
    entry("mxfp8", "packed as mxfp8", {"": of_mode("mxfp8", to_even=True)}),
    entry("q8-0", "packed as GGUF's Q8_0", {"": repacked(q8_0, 32)}),
    *map(of_half, STORED),
    entry("q4-0", "packed as GGUF's Q4_0", {"": repacked(q4_0, 32)}),
)
