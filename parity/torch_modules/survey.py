"""Run a torch model once to learn its taps: their shapes, and which was computed from which."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.parity.torch_modules.choices import is_choice
from lockstep.parity.torch_modules.rewriting import mode_class
from lockstep.parity.torch_modules.walk import Walk

Shape = tuple[int, ...]
CHOICE = "choice "  # and its number: no module's path holds a space


@dataclass
class Survey:
    """The taps in the order of computation, and what each was computed from.

    `aliases` maps a module that hands on another's value to that one, `kinds` a module's name to
    its class, and `fed` is what each step was fed. `scores` are, of each choice, between how many
    it is made, and the taps that it is made from or beside.
    """

    shapes: dict[str, Shape] = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    fed: list[list[int]] = field(default_factory=list)
    scores: dict[int, tuple[int, set[str]]] = field(default_factory=dict)

    def nearest(self, tap: str, dumped: Collection[str]) -> list[str]:
        """Return the dumped taps that a tap is replayed from, in the order of computation."""
        found, _ = self.behind(tap, dumped)
        return [name for name in self.shapes if name in found]

    def choices(self, tap: str, dumped: Collection[str]) -> list[int]:
        """Return the numbers of the choices that lie between a tap and what it is replayed from."""
        _, passed = self.behind(tap, dumped)
        return sorted(int(one.removeprefix(CHOICE)) for one in passed if one.startswith(CHOICE))

    def logits_told(self, choice: int, dumped: Collection[str]) -> bool:
        """Say whether the router's logits of a choice are dumped: a tap of as many columns."""
        width, taps = self.scores.get(choice, (0, set[str]()))
        return any(tap in dumped and self.shapes[tap][-1:] == (width,) for tap in taps)

    def behind(self, tap: str, dumped: Collection[str]) -> tuple[set[str], set[str]]:
        """Return the dumped taps that a tap is replayed from, and what lies between."""
        found: set[str] = set()
        seen, waiting = {tap}, [tap]
        while waiting:
            for source in self.sources.get(waiting.pop(), ()):
                if source in dumped:
                    found.add(source)
                elif source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return found, seen


def survey(
    module: Any, tokens: Sequence[int], later: Sequence[Sequence[int]], steps: int
) -> Survey:
    """Run the prompt and `steps` more; those that `later` does not say are the greedy choice."""
    found, heritage = Survey(), Heritage()

    def visit(name: str, made: Any) -> None:
        found.shapes[name] = tuple(made.shape)
        found.sources[name] = heritage.settled(made, name)

    walk, fed = Walk(module, visit), list(tokens)
    walk.beside = heritage.shared
    with mode_class()(heritage):
        for number in range(steps + 1):
            found.fed.append(fed)
            chosen = walk.step(fed, number, more=number < steps)
            fed = [*later[number]] if number < len(later) else [chosen]
    found.aliases, found.kinds = walk.aliases, walk.kinds
    found.scores = heritage.scores
    return found


class Heritage:
    """Follows, operation by operation, from which taps a tensor was computed.

    What is known of a tensor is known of the memory that it lies in, so views share it.
    """

    def __init__(self) -> None:
        self.known: dict[int, frozenset[str]] = {}
        self.choices = 0
        self.scores: dict[int, tuple[int, set[str]]] = {}

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        inputs = {place_of(one) for one in tensors([args, kwargs])}
        made = func(*args, **kwargs)
        union = frozenset().union(*(self.known.get(place, frozenset()) for place in inputs))
        if is_choice(func, args, made):
            taps = {one for one in union if not one.startswith(CHOICE)}
            self.scores[self.choices] = (args[0].shape[-1], taps)
            union |= {f"{CHOICE}{self.choices}"}
            self.choices += 1
        for one in tensors([made]):
            self.known[place_of(one)] = union
        if any(one.alias_info and one.alias_info.is_write for one in func._schema.arguments):
            for one in tensors([args])[:1]:
                self.known[place_of(one)] = union
        return made

    def settled(self, tensor: Any, tap: str) -> tuple[str, ...]:
        """Return what a tap was computed from; from here on it stands for itself."""
        sources = self.known.get(place_of(tensor), frozenset())
        self.known[place_of(tensor)] = frozenset([tap])
        return tuple(sorted(sources))

    def shared(self, tap: str, output: Any) -> None:
        """Count what a module hands out beside a tap as made from it: a router's choice."""
        for tensor in tensors([output]):
            place = place_of(tensor)
            known = self.known.get(place, frozenset())
            for one in known:
                if one.startswith(CHOICE):
                    self.scores[int(one.removeprefix(CHOICE))][1].add(tap)
            self.known[place] = known | {tap}


def place_of(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata


def tensors(values: Any) -> list[Any]:
    """Return all tensors in nested lists and dictionaries."""
    import torch

    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [one for value in values for one in tensors(value)]
