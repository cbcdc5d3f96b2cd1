"""What goes wrong with rotary positions."""

import numpy as np

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import changed_input, instead, only, rewrite

FREQUENCIES = 2


def interleaved(ops, x, positions, frequencies, *, factor):
    """Turn pairs of neighbours, by bringing them half a head apart and back."""
    apart = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    turned = ops.rope(apart, positions, frequencies, factor=factor)
    first, second = np.split(turned, 2, axis=-1)
    return np.stack([first, second], axis=-1).reshape(x.shape)


def of_base(theta):
    """Return plain frequencies of another base, as many as there were."""

    def change(ops, frequencies):
        pairs = frequencies.shape[-1]
        return ops.rope_frequencies(theta=theta, dims=2 * pairs) + 0 * frequencies

    return change


def has_theta(call, graph, theta):
    return getattr(graph.config, "rope_theta", None) == theta


def plain_for_proportional(call, graph):
    source = graph.source(call, FREQUENCIES)
    if source.op != "rope_frequencies_proportional":
        return None
    theta = source.options["theta"]
    return call.with_changed(FREQUENCIES, of_base(theta))


FAULTS = (
    Fault(
        id="rope-pairing-swapped",
        wrong="rotate pairs (2j, 2j + 1)",
        right="rotate pairs (j, j + D/2)",
        symptom="fluent at first, then broken; position 0 is exact",
        where="self_attn.q_rope",
        fix="rotate halves (Hugging Face layout), not neighbours",
        variants={"": instead("rope", interleaved)},
    ),
    Fault(
        id="rope-theta-default",
        wrong="base 10000",
        right="base rope_theta of the config",
        symptom="short prompts are fine, quality falls with length",
        where="self_attn.q_rope",
        fix="read rope_theta from the config (rope_parameters.rope_theta in newer files)",
        variants={
            "": only(
                lambda call, graph: not has_theta(call, graph, 10000.0),
                changed_input("rope", FREQUENCIES, of_base(10000.0)),
            )
        },
    ),
    Fault(
        id="rope-proportional-missing",
        wrong="frequencies of plain rope over the whole head",
        right="the first quarter of the angles, the rest 0",
        symptom="collapses to dashes together with other bugs",
        where="self_attn.q_rope of full layers",
        fix="make the frequencies beyond partial_rotary_factor zero",
        variants={"": rewrite("rope")(plain_for_proportional)},
    ),
)
