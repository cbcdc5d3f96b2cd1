"""What goes wrong with the embedding."""

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import option, skipped

FAULTS = (
    Fault(
        id="embed-scale-missing",
        wrong="h = E[t]",
        right="h = sqrt(hidden_size) E[t]",
        symptom="logits too flat; one dash or space over and over",
        where="model.embed_tokens",
        fix="multiply the embedding by the root of hidden_size",
        evidence=("mlx-vlm#893",),
        variants={"": skipped("scale", r"model\.embed_tokens")},
    ),
    Fault(
        id="embed-scale-twice",
        wrong="h = hidden_size E[t]",
        right="h = sqrt(hidden_size) E[t]",
        symptom="garbage",
        where="model.embed_tokens",
        fix="apply the scale once",
        evidence=("mlx-vlm#906",),
        variants={"": option("scale", "by", lambda by: by * by, r"model\.embed_tokens")},
    ),
)
