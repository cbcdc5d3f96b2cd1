"""A Python callable, or an object with `forward`: docs/parity/laws.md defines what it may offer."""

import inspect
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.laws.port import Refused, shaped
from lockstep.reference.checkpoint.errors import InputError, show


class PythonPort:
    """Raises: InputError if `target` cannot be called."""

    batches = ""

    def __init__(self, name: str, target: Any):
        call = getattr(target, "forward", target)
        if not callable(call):
            raise InputError(name, f"a {type(target).__name__}, which cannot be called")
        self.name, self.call, self.target = name, call, target
        config = getattr(target, "config", None)
        found = getattr(target, "vocab_size", getattr(config, "vocab_size", None))
        self.vocabulary = found if isinstance(found, int) else None
        offers = keywords(call)
        makes = callable(getattr(target, "make_cache", None))
        self.cached = "" if makes and "cache" in offers else "offers no make_cache() and cache="
        self.padded = "" if "lengths" in offers else "takes no lengths="

    def logits(
        self, tokens: np.ndarray, *, cache: Any = None, lengths: np.ndarray | None = None
    ) -> np.ndarray:
        given = {"cache": cache, "lengths": lengths}
        options = {name: value for name, value in given.items() if value is not None}
        try:
            answer = to_numpy(self.call(tokens.copy(), **options))
        except (Exception, SystemExit) as error:
            raise Refused(f"raised {type(error).__name__}: {show(str(error), 120)}") from None
        return shaped(np.array(answer), tokens, self.name)

    def make_cache(self) -> Any:
        return self.target.make_cache()


def keywords(call: Any) -> set[str]:
    """Return the arguments that a callable names."""
    try:
        return set(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return set()
