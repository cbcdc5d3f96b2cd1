"""Choose the next token from its logits, as the reference does, sorting as little as it can.

Sums are rounded as the reference rounds them, so that both choose alike at a border too. Only
typical sampling may not, where rounding decides which of two tokens is nearer to the entropy.
"""

from collections.abc import Sequence

import numpy as np

from lockstep.fast.decoding.sampling.candidates import candidates, shares
from lockstep.fast.decoding.sampling.draw import draw
from lockstep.fast.decoding.sampling.greedy import greedy
from lockstep.fast.decoding.sampling.logit_bias import logit_bias
from lockstep.fast.decoding.sampling.min_p import min_p
from lockstep.fast.decoding.sampling.penalties import penalties
from lockstep.fast.decoding.sampling.temperature import temperature
from lockstep.fast.decoding.sampling.top_k import top_k
from lockstep.fast.decoding.sampling.top_p import top_p
from lockstep.fast.decoding.sampling.typical import typical
from lockstep.fast.shapes import Array
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.sampling_stages import Stages, check_uniform

STAGES = Stages(logit_bias, penalties, candidates, temperature, top_k, top_p, min_p, typical)


def sample(
    logits: Array,
    options: SamplingOptions,
    *,
    uniform: float,
    seen: Sequence[int] = (),
    prompt: int = 0,
) -> int:
    """Draw a token from its logits (V,). `seen` are the tokens before it, for the penalties."""
    check_uniform(uniform)
    best = greedy(logits)  # for its errors: a bias may hide what is wrong
    if options.is_argmax:
        return best
    left = STAGES.remaining(logits, options, seen, prompt)
    if options.temperature == 0:
        return int(left.ids[left.logits == left.logits.max()].min())
    return draw(left, uniform, rule=options.rules.draws)


def probabilities(
    logits: Array, options: SamplingOptions, seen: Sequence[int] = (), prompt: int = 0
) -> Array:
    """Return each token's probability after all stages, (V,)."""
    greedy(logits)
    left = STAGES.remaining(logits, options, seen, prompt)
    if options.temperature == 0:
        left = left.best_first().at(slice(1))
    out = np.zeros(len(logits))
    out[left.ids] = shares(left)
    return out
