"""How matrices are stored, one format a file: where sixteen neighbouring weights come from.

`weights(of, matrix, row, group, index)` returns the sixteen of a row whose columns begin at
`group * of.group + index * WIDTH`, as float32. `matrix` is the tuple of the format's arrays, and
`of` the numbers that its `layout` gives: `group` columns lie in `step` elements of the first array.
"""

from lockstep.fast.kernels.formats import (
    affine,
    dense,
    int8,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    turbo,
)

FORMATS = {
    "dense": dense,
    "affine": affine,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "int8": int8,
    "turbo": turbo,
}
