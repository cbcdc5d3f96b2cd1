"""Write a model with packed weights, as folders of mlx-community have them."""

from lockstep.parity.quantizing.folder import quantize
from lockstep.parity.quantizing.recipe import Recipe, Rule, mixed, parse_packing, recipe_of

__all__ = ["Recipe", "Rule", "mixed", "parse_packing", "quantize", "recipe_of"]
