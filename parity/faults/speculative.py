"""What goes wrong with decoders that look at more than the last token, and shows in a prefill."""

import numpy as np

from lockstep.parity.faults.fault import Fault
from lockstep.parity.graph import Call, Graph


def one_row_late(ops, logits):
    """Give each token the logits of the one before it, the first its own."""
    return np.concatenate([logits[:, :1], logits[:, :-1]], axis=1)


def shifted_logits(call: Call, graph: Graph) -> Call | None:
    return call.followed(one_row_late) if "logits" in call.taps else None


FAULTS = (
    Fault(
        id="diffusion-logit-shift",
        wrong="row i holds the logits of row i - 1",
        right="row i holds its own logits",
        symptom="text off by one token, or garbage",
        where="logits",
        fix="do not shift the logits: Dream alone predicts token i from row i - 1",
        evidence=("DreamLM/Dream#31", "apple/ml-diffucoder#15", "axolotl-ai-cloud/axolotl#3191"),
        variants={"": shifted_logits},
    ),
)
