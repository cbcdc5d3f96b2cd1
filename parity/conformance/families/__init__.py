"""Which examples of each operation are drawn. One family of operations a file."""

from lockstep.parity.conformance.draw import Family
from lockstep.parity.conformance.families.attention import ATTENTION
from lockstep.parity.conformance.families.experts import EXPERTS
from lockstep.parity.conformance.families.layout import LAYOUT
from lockstep.parity.conformance.families.norms import NORMS
from lockstep.parity.conformance.families.packed import PACKED
from lockstep.parity.conformance.families.pointwise import POINTWISE
from lockstep.parity.conformance.families.positions import POSITIONS
from lockstep.parity.conformance.families.products import PRODUCTS

FAMILIES: dict[str, Family] = {
    "pointwise": POINTWISE,
    "norms": NORMS,
    "layout": LAYOUT,
    "products": PRODUCTS,
    "packed": PACKED,
    "positions": POSITIONS,
    "attention": ATTENTION,
    "experts": EXPERTS,
}
EXAMPLES: Family = {op: draw for family in FAMILIES.values() for op, draw in family.items()}
