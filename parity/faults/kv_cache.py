"""What goes wrong with the cache already while the prompt is read."""

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.mask import seeing
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.rope import QUERIES
from lockstep.parity.faults.turns import POSITIONS, X, shifted
from lockstep.parity.graph import Call, Graph


def moved_by_the_prompt(call: Call, graph: Graph) -> Call:
    """Turn queries as if the prompt were in the cache already."""
    return call.with_changed(POSITIONS, shifted(graph.input_shape(call, X)[2]))


FAULTS = (
    Fault(
        id="kv-cursor-not-advanced",
        wrong="every token's key and value are written into the same slot",
        right="token p goes into slot p, behind those before it",
        symptom="each token knows itself alone; the text ignores the prompt",
        where="self_attn.o_proj from the second token on",
        fix="advance the write position by the tokens written, once a step for all layers",
        variants={"": seeing(window=1)},
    ),
    Fault(
        id="kv-offset-aliased",
        wrong="queries turn by p + L",
        right="queries turn by p",
        symptom="quality falls with the length of the prompt",
        where="self_attn.q_rope",
        fix="take the offset of the cache before keys are put into it, and by value",
        evidence=("Blaizzy/mlx-vlm#966",),
        acausal=True,
        variants={"": rewrite("rope", QUERIES)(moved_by_the_prompt)},
    ),
)
