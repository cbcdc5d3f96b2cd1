"""What goes wrong between logits and a choice; what fits first is named first.

Conventions stand in front: where an engine's own order explains a port, nothing is wrong with it.
"""

from lockstep.parity.faults.sampling import conventions, cuts, draws, penalties, settings

MISTAKES = (
    *conventions.MISTAKES, *draws.MISTAKES, *cuts.MISTAKES, *penalties.MISTAKES,
    *settings.MISTAKES,
)  # fmt: skip
