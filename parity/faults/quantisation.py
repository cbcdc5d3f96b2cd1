"""What goes wrong when packed weights are unpacked, in MLX's forms and in GGUF's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.faults.code_values import (
    biased,
    centred_codes,
    meant,
    one_step,
    signed_codes,
    zero_points,
)
from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.misread import (
    MINIMA,
    NIBBLES,
    ONE,
    TOP_BITS,
    by_runs,
    complement,
    data_then_scales,
    exchanged_steps,
    first_block_only,
    four_bit_scales,
    halves_apart,
    high_first,
    in_sequence,
    lanes_in_sequence,
    linear_scales,
    misread,
    neighbours_swapped,
    of_eight,
    of_gguf,
    of_mlx,
    one_where_clear,
    other_sign,
    q4_around,
    q6_moved,
    q6_unsigned_scales,
    q8_less_128,
    quarter_written,
    reoctet,
    respelled,
    scales_for_minima,
    short_header,
    top_bits_exchanged,
    unpacked,
    unsigned_q4,
    unsigned_q8,
    wide_groups,
    without_minima,
    without_top_bits,
    without_top_of_scales,
)
from lockstep.parity.faults.misread_scales import (
    highest_first,
    low_bits_of_the_other,
    top_bit_lost,
    top_bits_of_the_other,
)
from lockstep.parity.faults.other_quantisation import repacked
from lockstep.parity.faults.packing import affine, codes_of, recoded
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.tiles import shortened, without_last_group


def last_first(ops: Any, weight: Any) -> Any:
    """Read the codes of a word from its other end."""
    codes = codes_of(weight)
    words = codes.reshape(-1, 32 // weight.bits)
    return recoded(weight, words[:, ::-1].reshape(codes.shape))


def low_head(bits: int, group_size: int) -> Rewrite:
    change = repacked(partial(affine, bits=bits, group_size=group_size), group_size, "lm_head")
    return rewrite("linear", "lm_head")(change)


FAULTS = (
    Fault(
        id="q4-nibble-order",
        wrong="the two codes of a byte go to other places: neighbours for halves, or high first",
        right="MLX: low half first, then high; GGUF: low half to place j, high to j + 16 (or 32)",
        symptom="fluent garbage; each block holds the right numbers in the wrong order",
        where="the first packed projection",
        fix="follow the format: MLX packs in sequence, GGUF by halves of a run",
        evidence=("kekzl/imp#567",),
        variants={
            "MLX, high half first": respelled(neighbours_swapped),
            "MLX read by halves": respelled(halves_apart),
            "GGUF in sequence": reoctet(in_sequence, *NIBBLES),
            "GGUF, high half first": reoctet(high_first, *NIBBLES),
            "Q4_K by runs of 16 bytes": reoctet(by_runs(16), "Q4_K"),
            "Q4_K, all low halves first": reoctet(by_runs(128), "Q4_K"),
        },
    ),
    Fault(
        id="q4-signedness",
        wrong="codes taken as two's complement, unsigned, or around the middle",
        right="MLX: s q + b, q unsigned; Q4_0: d (q - 8); Q6_K: d s (q - 32)",
        symptom="all weights moved to one side",
        where="the first packed projection",
        fix="subtract 8 in Q4_0, 32 in Q6_K, nothing in MLX's affine form",
        evidence=("1bit-MONSTER/1bit-MONSTER#1268",),
        variants={
            "affine, two's complement": meant(signed_codes, of_mlx("affine", bits=(4, 8))),
            "affine, around the middle": meant(centred_codes, of_mlx("affine", bits=(4, 8))),
            "affine, the top bit lost": misread(top_bit_lost, of_mlx("affine", bits=(4, 8))),
            "Q4_0, two's complement": reoctet(complement, "Q4_0"),
            "Q4_0, unsigned": unpacked(unsigned_q4, of_gguf("Q4_0")),
            "Q6_K, unsigned": unpacked(q6_moved(32), of_gguf("Q6_K")),
        },
    ),
    Fault(
        id="q4_1-header-size",
        wrong="codes of Q4_1 read from byte 2",
        right="a block begins with a step and a minimum, codes from byte 4",
        symptom="silent: shapes fit, weights do not",
        where="the first Q4_1 projection",
        fix="skip 4 bytes in Q4_1, 2 in Q4_0",
        evidence=("ml-explore/mlx#3664", "antirez/gguf-tools#9"),
        variants={"": reoctet(short_header, "Q4_1")},
    ),
    Fault(
        id="q5-high-bit",
        wrong="the fifth bit (of Q6_K the top two) dropped, given to another part of the block, "
        "or 1 where it is clear",
        right="16 where the fifth bit is set, else 0; in Q6_K 16 times the top two bits",
        symptom="degraded text",
        where="the first projection of a Q5 format, or of Q6_K",
        fix="bit i of the top bits belongs to weight i and is worth 16",
        evidence=("huggingface/candle#1569", "huggingface/candle#617"),
        variants={
            "dropped": reoctet(without_top_bits, *TOP_BITS),
            "1 where it is clear": reoctet(one_where_clear, "Q5_0", "Q5_1"),
            "of the other half": reoctet(top_bits_exchanged, "Q5_0", "Q5_1"),
            "Q6_K, pairs of bits in reverse": reoctet(highest_first, "Q6_K"),
        },
    ),
    Fault(
        id="kquant-6bit-scale-unpack",
        wrong="scales of 6 bits read as 4 bits, or the bits that lie elsewhere lost or exchanged",
        right="6 bits out of 12 bytes; in Q3_K minus 32",
        symptom="incoherent text",
        where="the first projection of Q3_K, Q4_K or Q5_K",
        fix="put the top two bits back: scales' lie in bytes 0 to 3, minima's in 4 to 7",
        evidence=("paiml/aprender#2115",),
        variants={
            "Q3_K, 4 bits around 8": reoctet(four_bit_scales, "Q3_K"),
            "Q4_K and Q5_K, top bits lost": reoctet(without_top_of_scales, "Q4_K", "Q5_K"),
            **{
                f"Q4_K and Q5_K, {part} bits of scales and minima exchanged": reoctet(
                    change, "Q4_K", "Q5_K"
                )
                for part, change in (("top", top_bits_of_the_other), ("low", low_bits_of_the_other))
            },
        },
    ),
    Fault(
        id="kquant-lane-order",
        wrong="the four codes of a byte taken for neighbours",
        right="the codes of a byte are 32 places apart",
        symptom="incoherent text",
        where="the first projection of Q2_K or Q3_K",
        fix="read 32 bytes at a time, first their lowest two bits, then the next",
        evidence=("paiml/aprender#1924", "ModelCloud/GPTQModel#3058"),
        variants={"": reoctet(lanes_in_sequence, "Q2_K", "Q3_K")},
    ),
    Fault(
        id="kquant-partial-write",
        wrong="of each half of a Q6_K block only 32 of 128 weights are written",
        right="all 256 weights of a block",
        symptom="three weights in four are zero",
        where="the first Q6_K projection",
        fix="write all four groups of 32 in each half",
        evidence=("1bit-MONSTER/1bit-MONSTER#734",),
        variants={"": reoctet(quarter_written, "Q6_K")},
    ),
    Fault(
        id="quant-first-block-only",
        wrong="everything behind the first block of a row is zero",
        right="all blocks of a row",
        symptom="weights are mostly zero",
        where="the first packed projection",
        fix="look for a return inside of the loop over blocks",
        evidence=("1bit-MONSTER/1bit-MONSTER#483",),
        variants={"": misread(first_block_only, lambda stored: stored.packed)},
    ),
    Fault(
        id="block-minimum-misread",
        wrong="minima with the other sign, left out, with the step or the scales of the codes",
        right="d s q - d_min m in K formats, d q + m in Q4_1 and Q5_1",
        symptom="incoherent text, all weights moved to one side",
        where="the first projection of a format with minima",
        fix="subtract d_min m in Q2_K, Q4_K and Q5_K; add m in Q4_1 and Q5_1; d lies before d_min",
        variants={
            "the other sign": reoctet(other_sign, *MINIMA),
            "left out": reoctet(without_minima, *MINIMA),
            "d and d_min exchanged": reoctet(exchanged_steps, *MINIMA),
            "scales and minima of groups exchanged": reoctet(scales_for_minima, "Q4_K", "Q5_K"),
        },
    ),
    Fault(
        id="q8-unsigned",
        wrong="d q with q from 0 to 255, or d (q - 128) with these",
        right="d q with q from -128 to 127; so are the scales of groups in Q6_K",
        symptom="garbage",
        where="the first Q8_0 or Q6_K projection",
        fix="read the bytes as int8",
        variants={
            "": unpacked(unsigned_q8, of_gguf("Q8_0")),
            "less 128": unpacked(q8_less_128, of_gguf("Q8_0")),
            "scales of Q6_K": unpacked(q6_unsigned_scales, of_gguf("Q6_K")),
        },
    ),
    Fault(
        id="affine-bias-dropped",
        wrong="w = s q, or s q + 2 b",
        right="w = s q + b",
        symptom="garbage",
        where="the first packed projection",
        fix="add the bias of each group, once",
        variants={
            "": misread(biased(0), of_mlx("affine")),
            "twice": misread(biased(2), of_mlx("affine")),
            "the other sign": misread(biased(-1), of_mlx("affine")),
        },
    ),
    Fault(
        id="affine-zero-point-style",
        wrong="w = s (q - b)",
        right="w = s q + b",
        symptom="garbage",
        where="the first packed projection",
        fix="MLX's biases are numbers of the weight's own size, no zero points",
        variants={"": misread(zero_points, of_mlx("affine"))},
    ),
    Fault(
        id="gptq-zero-plus-one",
        wrong="w = s (q - z), z one too large or too small, or the middle of all codes",
        right="w = s (q - z); in MLX's form b = -s z, in Q4_0 z = 8, in Q6_K z = 32",
        symptom="one token over and over; every weight is off by one step, or by half of one",
        where="the first packed projection",
        fix="add 1 to the zero points of GPTQ's first format, nothing to those of its second",
        evidence=(
            "vllm-project/vllm#38966",
            "vllm-project/vllm#26092",
            "ModelCloud/GPTQModel#2351",
        ),
        variants={
            "one step low": misread(one_step(-1), of_mlx("affine")),
            "one step high": misread(one_step(1), of_mlx("affine")),
            "Q4_0 around 7": unpacked(q4_around(7), of_gguf("Q4_0")),
            "Q4_0 around 7.5": unpacked(q4_around(7.5), of_gguf("Q4_0")),
            "Q4_0 around 9": unpacked(q4_around(9), of_gguf("Q4_0")),
            "Q6_K around 31": unpacked(q6_moved(1), of_gguf("Q6_K")),
            "Q6_K around 33": unpacked(q6_moved(-1), of_gguf("Q6_K")),
        },
    ),
    Fault(
        id="awq-nibble-order",
        wrong="the codes of a word in the order 0 2 4 6 1 3 5 7, from that order into sequence, or "
        "from the other end",
        right="MLX packs codes in sequence, AWQ even places before odd ones",
        symptom="garbage; each word holds the right numbers in the wrong order",
        where="the first packed projection",
        fix="reorder the codes when weights are converted from AWQ, and only then",
        variants={
            "even places first": respelled(of_eight(0, 2, 4, 6, 1, 3, 5, 7)),
            "put back though they were in sequence": respelled(of_eight(0, 4, 1, 5, 2, 6, 3, 7)),
            "the last place first": misread(
                last_first, of_mlx("affine", "mxfp4", "nvfp4", "mxfp8", bits=(2, 4, 8))
            ),
        },
    ),
    Fault(
        id="mxfp4-split-layout",
        wrong="blocks of scale and codes read where codes and scales lie apart",
        right="codes and scales as the buffer has them",
        symptom="garbage, infinite numbers among it",
        where="the first projection of GGUF's MXFP4",
        fix="read a buffer by the layout it was uploaded with",
        evidence=("kekzl/imp#58",),
        variants={"": reoctet(data_then_scales, "MXFP4")},
    ),
    Fault(
        id="quant-bits-global",
        wrong="groups of the config's size, twice as wide as a module's own",
        right="bits and group size of each module, as its shapes say",
        symptom="a crash where widths differ; else some modules are off",
        where="the projections that the config lists by themselves",
        fix="work out bits = 32 * packed columns / inputs and group = inputs / scales a module",
        evidence=("Blaizzy/mlx-vlm#1791", "ml-explore/mlx-swift-lm@a21aef8a"),
        variants={"groups twice as wide": misread(wide_groups, of_mlx("affine"))},
    ),
    Fault(
        id="e8m0-as-linear",
        wrong="w = level * byte",
        right="w = level * 2^(byte - 127)",
        symptom="weights hundreds of thousands of times too large",
        where="the first projection of mxfp4 or mxfp8",
        fix="the scale's byte is an exponent",
        evidence=("jundot/omlx#2159",),
        variants={"": unpacked(linear_scales, of_mlx("mxfp4", "mxfp8"))},
    ),
    Fault(
        id="fp8-scale-ignored",
        wrong="w = level",
        right="w = level * scale of its group",
        symptom="weights hundreds of times too large or small",
        where="the first projection of tiny floats",
        fix="load the scales: a lenient loader drops them without a word",
        evidence=("Lightricks/LTX-2#172",),
        variants={
            "": misread(
                lambda ops, weight: replace(
                    weight, scales=np.full_like(weight.scales, ONE[weight.mode])
                ),
                of_mlx("mxfp4", "mxfp8", "nvfp4"),
            )
        },
    ),
    Fault(
        id="lm-head-quantised-too-low",
        wrong="the head's matrix packed to 4 bits, which MODEL's is not",
        right="the head as MODEL has it",
        symptom="fluent, but arithmetic and rare words suffer",
        where="lm_head",
        fix="leave head and embedding at 8 bits or more",
        variants={f"4 bits in groups of {group}": low_head(4, group) for group in (64, 32, 128)},
    ),
    Fault(
        id="qmm-tail-tile",
        wrong="columns beyond the last whole tile are left out",
        right="every column counts",
        symptom="errors in modules of odd widths only",
        where="projections whose inputs are no multiple of the tile",
        fix="handle the tail of the loop over columns",
        evidence=("ml-explore/mlx#3854", "ml-explore/mlx#1577", "ml-explore/mlx-swift-lm#381"),
        variants={
            **{f"tiles of {size}": shortened(size) for size in (16, 32, 64, 128, 256)},
            "the last group": without_last_group,
        },
    ),
)
