"""Choose the next token from its logits, with a uniform number that comes from outside.

Two backends with different random generators can so be compared token for token. Everything is
computed in float64; ties go to the lowest token id. The order of the stages is in
`reference/scheduling/sampling_stages.py`.
"""

from collections.abc import Sequence

import numpy as np

from lockstep.reference.decoding.sampling.candidates import candidates, checked, shares
from lockstep.reference.decoding.sampling.draw import draw
from lockstep.reference.decoding.sampling.logit_bias import logit_bias
from lockstep.reference.decoding.sampling.min_p import min_p
from lockstep.reference.decoding.sampling.penalties import penalties
from lockstep.reference.decoding.sampling.temperature import temperature
from lockstep.reference.decoding.sampling.top_k import top_k
from lockstep.reference.decoding.sampling.top_p import top_p
from lockstep.reference.decoding.sampling.typical import typical
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.sampling_stages import Stages, check_uniform
from lockstep.reference.shapes import Array

STAGES = Stages(logit_bias, penalties, candidates, temperature, top_k, top_p, min_p, typical)


def sample(
    logits: Array,
    options: SamplingOptions,
    *,
    uniform: float,
    seen: Sequence[int] = (),
    prompt: int = 0,
) -> int:
    """Draw a token from its logits (V,). `seen` are the tokens before it, for the penalties.

    The first `prompt` of them are the prompt: some engines count only what was answered.
    `uniform` is in [0, 1). At temperature 0 the best token is taken and `uniform` is not looked at.
    Raises: InputError for logits as in `greedy`, and for token ids beyond the vocabulary;
    ValueError for a `uniform` out of range.
    """
    check_uniform(uniform)
    left = STAGES.remaining(checked(logits), options, seen, prompt)
    if options.temperature == 0:
        return int(left.best_first().ids[0])
    return draw(left, uniform, rule=options.rules.draws)


def probabilities(
    logits: Array, options: SamplingOptions, seen: Sequence[int] = (), prompt: int = 0
) -> Array:
    """Return each token's probability after all stages, (V,)."""
    left = STAGES.remaining(checked(logits), options, seen, prompt)
    if options.temperature == 0:
        left = left.best_first().at(slice(1))
    out = np.zeros(len(logits))
    out[left.ids] = shares(left)
    return out
