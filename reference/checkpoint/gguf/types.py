"""The numbers that GGUF files give tensor types."""

from __future__ import annotations

from lockstep.reference.checkpoint.block_tensor import BLOCKS
from lockstep.reference.checkpoint.dtypes import item_size

TYPES = {
    **{0: "F32", 1: "F16", 30: "BF16"},
    **{2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 20: "IQ4_NL", 39: "MXFP4"},
    **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"},
}
# Named in the error that refuses them.
OTHERS = {
    **{4: "Q4_2, removed", 5: "Q4_3, removed", 9: "Q8_1", 15: "Q8_K"},
    **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S"},
    **{23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M"},
    **{31: "Q4_0_4_4, removed", 32: "Q4_0_4_8, removed", 33: "Q4_0_8_8, removed"},
    **{34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4, removed", 37: "IQ4_NL_4_8, removed"},
    **{38: "IQ4_NL_8_8, removed", 40: "NVFP4", 41: "Q1_0"},
}


def block_of(name: str) -> tuple[int, int]:
    """Return the weights and the bytes of a block; a type without blocks has blocks of one."""
    return BLOCKS[name] if name in BLOCKS else (1, item_size(name))
