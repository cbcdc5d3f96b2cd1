"""What goes wrong with the scales of packed weights, those of groups and those of blocks."""

from __future__ import annotations

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.misread import STEPS, bfloat16_step, misread, of_gguf, of_mlx, unpacked
from lockstep.parity.faults.misread_scales import (
    GROUPS,
    ROWS,
    bare_codes,
    exchanged,
    first_block_for_all,
    in_own_row,
    kept_in,
    of_first,
    of_neighbour,
    of_other_block,
    read_transposed,
    scaled,
    steps_without_sign,
    tiled,
    without_sign,
)
from lockstep.parity.faults.other_quantisation import STORED
from lockstep.parity.faults.tensors import MISREAD, reweighted

NEIGHBOURS = (
    ("of the group before", GROUPS, 1),
    ("of the group after", GROUPS, -1),
    ("of the row before", ROWS, 1),
    ("of the row after", ROWS, -1),
)
PARTS = (("", True), (", the scale alone", False))

FAULTS = (
    Fault(
        id="quant-scales-of-neighbour",
        wrong="w = s' q + b', scale and bias of another group, or of another block",
        right="w = s q + b, of its own group: number k of a row is in group k // g",
        symptom="text that is nearly right, or garbage",
        where="the first packed projection",
        fix="lay scales out as (rows, groups), count both from 0; GGUF has them in each block",
        variants={
            **{
                f"{name}{part}": of_neighbour(axis, step, biases=biases)
                for name, axis, step in NEIGHBOURS
                for part, biases in PARTS
            },
            **{f"of a row's first group{part}": of_first(biases=some) for part, some in PARTS},
            "of the block before": of_other_block(-1),
            "of the block after": of_other_block(1),
            "of the block before, within the row": in_own_row(-1),
            "of the block after, within the row": in_own_row(1),
            "tiled along the row": unpacked(tiled, of_mlx("affine")),
            "read column by column": scaled(read_transposed, biases=True),
            "of a row's first block": misread(first_block_for_all, of_gguf(*STEPS)),
        },
    ),
    Fault(
        id="quant-scales-and-biases-mixed",
        wrong="w = b q + s, or the codes themselves",
        right="w = s q + b",
        symptom="numbers that are far too large",
        where="the first packed projection, or the embedding",
        fix="take `.scales` and `.biases` by their names; unpack the rows of the table too",
        variants={
            "exchanged": misread(exchanged, of_mlx("affine")),
            "codes alone, in the embedding": reweighted(
                bare_codes, of_mlx("affine"), r".*embed_tokens", turn=MISREAD
            ),
        },
    ),
    Fault(
        id="quant-scales-in-half",
        wrong="scales and biases in half precision",
        right="scales and biases as they are stored",
        symptom="none to see: noise of a part in a thousand",
        where="the first packed projection",
        fix="keep scales in the dtype of the file",
        coarse=True,
        variants={
            f"{name}{part}": kept_in(name, biases=biases)
            for name in STORED
            for part, biases in (("", True), (", scales alone", False))
        },
    ),
    Fault(
        id="quant-scale-sign-lost",
        wrong="|s| q + b, or |d| q",
        right="s q + b, d q: a scale may be negative, so that the longer side gets the last code",
        symptom="garbage",
        where="the first packed projection",
        fix="read scales as signed numbers, all sixteen bits of them",
        variants={
            "of groups": without_sign,
            "of blocks": misread(steps_without_sign, of_gguf(*STEPS)),
        },
    ),
    Fault(
        id="block-step-as-bfloat16",
        wrong="the step of a block taken for a bfloat16",
        right="a float16",
        symptom="weights of next to nothing, as if they were zero",
        where="the first packed projection",
        fix="read the two bytes as IEEE half precision",
        variants={"": unpacked(bfloat16_step, of_gguf(*STEPS))},
    ),
)
