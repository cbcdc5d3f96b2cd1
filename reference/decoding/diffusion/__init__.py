"""WeDLM's decoder: masks are filled in where the model is sure, in any order."""

from lockstep.reference.decoding.diffusion.generate import generate
from lockstep.reference.decoding.diffusion.selection import entropy, selected

__all__ = ["entropy", "generate", "selected"]
