"""There is a logit for each token of the vocabulary."""

from lockstep.parity.laws.bench import Bench
from lockstep.parity.laws.finding import BROKEN, PASS, Finding, not_tried

LAW = "vocabulary width"
POINTS_TO = (
    "the head's rows: a table that is padded to a multiple of 64 keeps its padding",
    "the width before the head: hidden states were handed out instead of logits",
    "tokens added to the tokenizer that the head has no row for",
)


def check(bench: Bench, vocabulary: int | None) -> Finding:
    if vocabulary is None:
        return not_tried(LAW, f"no --vocab was given; the logits have {bench.base.shape[-1]}")
    did, found = f"counted the logits of a token against --vocab {vocabulary}", bench.base.shape[-1]
    if found == vocabulary:
        return Finding(LAW, PASS, did, said=f"{found}")
    return Finding(LAW, BROKEN, did, said=f"{found} logits", points_to=POINTS_TO)
