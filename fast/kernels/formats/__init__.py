"""How matrices are stored, one format a file: where sixteen neighbouring weights come from.

`codes(of, matrix, row, group, index)` returns the codes, from 0 to 255, of the sixteen of a row
whose columns begin at `group * of.group + index * WIDTH`, and `levels` of the same what makes
weights of them: a scale, and an offset that is added. A format whose weights are no such thing, or
are quicker to make otherwise, has `weights`, which returns them as float32. `matrix` is the tuple
of the format's arrays, and `of` the numbers that its `layout` gives: `group` columns lie in `step`
elements of the first array.

`many_codes(of, matrix, row, vector)` returns 64 codes at once, and `lane_levels` of the same the
levels, a lane for four of them: one token is multiplied so. In bytes of the matrix that follow one
another lie the codes of `STRETCH` columns, in as many `VECTORS` of 64; so many of them that follow
one another have the same levels lane by lane as are `SHARED`. Sixteen columns are a chunk of a
vector; `NEAR` neighbours go to one vector before the next ones go to the next. If levels are not
found in one way, they are after every `TURN` sets of them. A format without these is multiplied as
floats there.

Codes lie around `ZERO`; `REST` is 1 where the offset is not just what takes that away. The levels
are the same for `SPAN` columns, or for the group. Where those of a row's groups lie side by side,
aside from the codes, `group_levels(of, matrix, row, group)` returns sixteen groups' scales and
offsets, zeros behind the last.
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
