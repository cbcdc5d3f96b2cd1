"""In which precision a port computed, by what most of its values show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lockstep.parity.dumps.dtype import stored_and_shown
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.naming.align import Alignment

SAMPLED = 24  # tensors that are looked at
SHOWN = "stored as {stored}, but most values are {shown}: judged as that"


def port_dtype(sides: Alignment, taps: Mapping[str, object]) -> tuple[str, list[str]]:
    """Return the dtype that a dump says, or that most of its tensors show, and a line if so.

    A router's probabilities are float32 in a bfloat16 port, and a bfloat16 port is often stored
    as float32; so neither one tensor nor how it is stored decides.
    """
    said = sides.dump.about.get("dtype")
    if said in EPSILONS:
        return said, []
    names = [sides.names[tap] for tap in sides.names if tap in taps]
    every = max(len(names) // SAMPLED, 1)
    found = [stored_and_shown(sides.dump.read(name)) for name in names[::every]]
    kinds = Counter(shown for _, shown in found if shown in EPSILONS)
    if not kinds:
        return "float32", []
    shown = max(kinds, key=lambda kind: (kinds[kind], -EPSILONS[kind]))
    stored = Counter(kept for kept, _ in found).most_common(1)[0][0]
    return shown, [SHOWN.format(stored=stored, shown=shown)] if stored != shown else []
