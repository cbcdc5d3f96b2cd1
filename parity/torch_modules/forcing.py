"""A run in which the port's value takes the place of every tap that the port dumped.

What a module then hands out is what it makes of the port's own inputs: its own error stands alone.
The modules run as they are written, so code that branches on values, such as a mixture's choice of
experts, follows the port's.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.parity.torch_modules.choices import Choices
from lockstep.parity.torch_modules.rewriting import mode_class
from lockstep.parity.torch_modules.walk import Walk, exchanged, handed_out

Port = Callable[[str, Any], Any]
"""Returns the port's value of a tap as a tensor like the one given, None if it has none."""


class ForcedWalk(Walk):
    """Calls `keep` with what each module makes of the port's values before it."""

    def __init__(self, module: Any, port: Port, keep: Callable[[str, Any], None], choices: Choices):
        super().__init__(module, self.force)
        self.port, self.keep, self.choices = port, keep, choices

    def force(self, name: str, made: Any) -> Any:
        if not self.again:
            self.keep(name, made)
        return self.port(name, made)

    def handed_on(
        self, module: Any, args: Any, kwargs: dict[str, Any], output: Any, instead: Any
    ) -> Any:
        """Let what a router makes of its logits, say, be made of the port's.

        The module runs twice more: once to find which operation made its first tensor, once with
        that operation's result exchanged. One that writes to a cache cannot run again.
        """
        import torch

        others = [one for one in rest(output) if isinstance(one, torch.Tensor)]
        if not others or self.again or any(map(is_cache, (*args, *kwargs.values()))):
            return exchanged(output, instead)
        self.again = True
        try:
            with self.choices.again() as rewind:
                place = self.maker(module, args, kwargs)
            if place is None:
                return exchanged(output, instead)
            rewind()
            with mode_class()(Counting(place, instead)):
                return exchanged(module.forward(*args, **kwargs), instead)
        finally:
            self.again = False

    def maker(self, module: Any, args: Any, kwargs: dict[str, Any]) -> int | None:
        """Return which operation of a module's forward pass makes its first tensor."""
        counting = Counting()
        with mode_class()(counting):
            first = handed_out(module.forward(*args, **kwargs))
        places = [place for place, made in enumerate(counting.made) if made is first]
        return places[0] if places else None


class Counting:
    """Counts operations; keeps what they make, or exchanges the result of the one at `place`."""

    def __init__(self, place: int | None = None, instead: Any = None):
        self.place, self.instead = place, instead
        self.count, self.made = -1, []

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        made = func(*args, **kwargs)
        self.count += 1
        if self.place is None:
            self.made.append(made)
        return self.instead if self.count == self.place else made


def rest(output: Any) -> list[Any]:
    return list(output[1:]) if isinstance(output, list | tuple) else []


def is_cache(value: Any) -> bool:
    return "Cache" in type(value).__name__
