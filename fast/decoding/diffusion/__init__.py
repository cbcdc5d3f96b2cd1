"""WeDLM's decoder: masks are filled in where the model is sure, in any order."""

from lockstep.fast.decoding.diffusion.generate import generate
from lockstep.fast.decoding.diffusion.selection import selected

__all__ = ["generate", "selected"]
