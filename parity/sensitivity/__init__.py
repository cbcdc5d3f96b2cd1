"""What packing each kind of matrix costs a model, one kind at a time."""

from lockstep.parity.sensitivity.cost import Cost
from lockstep.parity.sensitivity.examples import Example, read_questions, read_text
from lockstep.parity.sensitivity.measure import packing_costs

__all__ = ["Cost", "Example", "packing_costs", "read_questions", "read_text"]
