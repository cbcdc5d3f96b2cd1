"""Gate and up under each other's names: that their weights are exchanged, and the product's halves
too, changes nothing of what the model does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.verdict import Chosen, Key

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

PRODUCT, WEIGHTS = (
    ("swiglu-gate-up-swapped", where) for where in ("in the product", "in the weights")
)
SAID = (
    "gate_proj and up_proj of {layers} are dumped under each other's names, or stored so and "
    "taken so: what is made of them is right"
)


def withdraw_exchanged_names(chosen: dict[Key, Chosen], case: Case) -> list[str]:
    """Give up two bugs that undo each other in the same layers; return a note that says it."""
    product, weights = chosen.get(PRODUCT), chosen.get(WEIGHTS)
    if product is None or weights is None:
        return []
    layers = product.layers_in(case.graph)
    if layers != weights.layers_in(case.graph):
        return []
    del chosen[PRODUCT], chosen[WEIGHTS]
    several = "layers " if len(layers) > 1 else "layer "
    return [SAID.format(layers=several + ", ".join(map(str, layers)))]
