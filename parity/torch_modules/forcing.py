"""A run in which the port's value takes the place of every tap that the port dumped.

What a module then hands out is what it makes of the port's own inputs: its own error stands alone.
The modules run as they are written, so code that branches on values, such as a mixture's choice of
experts, follows the port's.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.parity.torch_modules.choices import Choices
from lockstep.parity.torch_modules.rewriting import mode_class
from lockstep.parity.torch_modules.walk import Walk, exchanged, handed_out

NEAR = 0.05  # of what an operation makes: two runs of it differ by rounding alone
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
        that operation's result exchanged. One that writes to a cache cannot run again, and of one
        in which that operation is not found again only the output is exchanged.
        """
        import torch

        others = [one for one in rest(output) if isinstance(one, torch.Tensor)]
        if not others or self.again or any(map(is_cache, (*args, *kwargs.values()))):
            return exchanged(output, instead)
        self.again = True
        try:
            with self.choices.again() as rewind:
                maker = self.maker(module, args, kwargs)
            if maker is None:
                return exchanged(output, instead)
            rewind()
            exchanging = Counting(maker, instead)
            with mode_class()(exchanging):
                made = module.forward(*args, **kwargs)
            return exchanged(made if exchanging.done else output, instead)
        finally:
            self.again = False

    def maker(self, module: Any, args: Any, kwargs: dict[str, Any]) -> Made | None:
        """Return which operation of a module's forward pass makes its first tensor."""
        counting = Counting()
        with mode_class()(counting):
            first = handed_out(module.forward(*args, **kwargs))
        return next((one for one in counting.made if one.result is first), None)


@dataclass(frozen=True)
class Made:
    """The result of an operation, and which of those of its kind it was: torch may put others,
    such as a detach, into one run and not into the next."""

    func: Any
    number: int
    result: Any

    def again(self, func: Any, number: int, result: Any) -> bool:
        """Say whether this is the same operation in another run, which made about the same."""
        import torch

        if (func, number) != (self.func, self.number) or result.shape != self.result.shape:
            return False
        size = float(self.result.nan_to_num(0, 0, 0).abs().max()) if result.numel() else 0.0
        return torch.allclose(result, self.result, NEAR, NEAR * size, equal_nan=True)


class Counting:
    """Counts operations by kind; keeps what they make, or exchanges the result of one."""

    def __init__(self, maker: Made | None = None, instead: Any = None):
        self.maker, self.instead, self.done = maker, instead, False
        self.counts: Counter[Any] = Counter()
        self.made: list[Made] = []

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        made, number = func(*args, **kwargs), self.counts[func]
        self.counts[func] += 1
        if self.maker is None:
            self.made.append(Made(func, number, made))
        elif self.maker.again(func, number, made):
            self.done = True
            return self.instead
        return made


def rest(output: Any) -> list[Any]:
    return list(output[1:]) if isinstance(output, list | tuple) else []


def is_cache(value: Any) -> bool:
    return "Cache" in type(value).__name__
