"""Prompt caches in files: what a model has read is kept, and another run goes on from there."""

from lockstep.parity.prompt_cache.loading import Loaded, load_cache
from lockstep.parity.prompt_cache.reuse import reused
from lockstep.parity.prompt_cache.saving import save_cache

__all__ = ["Loaded", "load_cache", "reused", "save_cache"]
