"""Every logit is a number."""

import numpy as np

from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import BROKEN, PASS, Finding

LAW = "finite logits"
POINTS_TO = (
    "float16 where activations need the range of bfloat16 or float32",
    "a row of the mask that hides every key (softmax of all -inf)",
    "weights read in the wrong dtype (BF16 as F16), or not all loaded",
)


def check(bench: Bench) -> Finding:
    bad = ~np.isfinite(bench.base.astype(np.float64))
    did = f"looked at the logits of {len(bench.tokens)} tokens"
    if not bad.any():
        return Finding(LAW, PASS, did, said=f"{bad.size} numbers")
    row, column = (int(i) for i in np.argwhere(bad)[0])
    said = f"{bad.sum()} of {bad.size} are not, the first at token {row}, id {column}"
    return Finding(LAW, BROKEN, did, said=said, points_to=POINTS_TO)
