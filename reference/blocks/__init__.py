"""The block formats of GGUF, one a file: from the bytes of blocks to the numbers they stand for.

Each function takes blocks (N, bytes of a block) and returns (N, weights of a block) in `dtype`.
Only the formats with a minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) round at all in float32, and then
once: everything else has few enough bits to be exact.
"""

from lockstep.reference.blocks.iq4_nl import iq4_nl
from lockstep.reference.blocks.mxfp4 import mxfp4
from lockstep.reference.blocks.q2_k import q2_k
from lockstep.reference.blocks.q3_k import q3_k
from lockstep.reference.blocks.q4_0 import q4_0
from lockstep.reference.blocks.q4_1 import q4_1
from lockstep.reference.blocks.q4_k import q4_k
from lockstep.reference.blocks.q5_0 import q5_0
from lockstep.reference.blocks.q5_1 import q5_1
from lockstep.reference.blocks.q5_k import q5_k
from lockstep.reference.blocks.q6_k import q6_k
from lockstep.reference.blocks.q8_0 import q8_0

FORMATS = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "IQ4_NL": iq4_nl,
    "MXFP4": mxfp4,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
