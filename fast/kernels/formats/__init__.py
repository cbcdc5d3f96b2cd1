"""The block formats that have a kernel, one a file: what one block adds to the product of a row."""

from lockstep.fast.kernels.formats import q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0

FORMATS = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
