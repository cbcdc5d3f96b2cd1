"""Which modules of a port are fed with another value than they should be, where values prove it.

A wrong tap that its module makes, to within rounding, of another value of the port, or of a sum of
some, was fed with that. The layers' own sums are looked at as well.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.judging.judge import EPSILONS, judge
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import parted, unwrapped
from lockstep.parity.torch_modules.casting import held_exactly
from lockstep.parity.torch_modules.loading import TorchModel
from lockstep.parity.torch_modules.replays import Replayed, fitting, ways_of
from lockstep.parity.torch_modules.rewriting import exact
from lockstep.parity.torch_modules.survey import Survey
from lockstep.reference.precision import dtype_named

LAYER = re.compile(r"(model\.layers\.|transformer\.h\.|.*?\.layers\.)([0-9]+)(?:\.|$)")
TRIES = 2  # layers that are looked at in vain, for a module's others to be left alone
FEW = 8  # tokens that are looked at before all are
SUMMED = 3  # values in a sum: the stream, attention, MLP
SAME = 1e-9  # of float64's own run, for two values to be one
NEAR = 100  # roundings, for a wrong tap to be looked at more closely
ENTERS, LEAVES = "what enters the layer", "the layer's own sum"
Values = Callable[[str], np.ndarray | None]


@dataclass(frozen=True)
class Wire:
    """A tap that its module makes of the sum of `got`, and should make of that of `right`."""

    tap: str
    got: tuple[str, ...]
    right: tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """Finds of which values a tap is made: by its module, or as their sum if that has parts."""

    model: TorchModel
    found: Survey
    dumped: Collection[str]

    def module(self, tap: str) -> Any:
        """Return the module of a tap if it has no parts, None if it has, or there is no such."""
        path = parted(tap)[1]
        modules = self.model.module.named_modules()
        made = next((one for name, one in modules if unwrapped(name) == path), None)
        return None if made is None or any(made.children()) else made

    def sums(self, tap: str) -> Iterator[tuple[str, ...]]:
        """Yield what a tap may be made of, the fewest first: values made before it, nearby."""
        step, path = parted(tap)
        home = layer_of(path)
        made = list(self.found.shapes)
        before = [name for name in made[: made.index(tap)]
                  if parted(name)[0] == step and name in self.dumped]  # fmt: skip
        enters = entering(before, home)
        inside = [name for name in before if home and layer_of(parted(name)[1]) == home]
        streams = [name for name in before if is_stream(parted(name)[1])]
        pool = list(dict.fromkeys([*enters, *inside])) or streams
        yield from ((name,) for name in dict.fromkeys([*pool, *streams]))
        alike = [name for name in pool if self.found.shapes[name] == self.wanted(tap, enters)]
        for count in range(2, SUMMED + 1):
            yield from combinations(alike, count)

    def wanted(self, tap: str, enters: Sequence[str]) -> tuple[int, ...]:
        return self.found.shapes[enters[0]] if enters else self.found.shapes[tap]

    def made(self, module: Any, names: tuple[str, ...], values: Values, dtype: Any) -> Any:
        """Return what a tap would be, made of a sum of values; None if they do not fit."""
        import torch

        parts = [values(name) for name in names]
        if any(part is None for part in parts):
            return None
        tensors = [torch.from_numpy(np.asarray(part, np.float64)).to(dtype) for part in parts]
        total = sum(tensors[1:], tensors[0])
        try:
            made = total if module is None else module(total)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None  # another width, or a module that takes more than one value
        return to_numpy(made.detach()) if isinstance(made, torch.Tensor) else None

    def fits(self, tap: str, values: Values, limit: float) -> Iterator[tuple[str, ...]]:
        """Yield the sums of fewest values that give a tap to within a limit, in float64."""
        import torch

        module, right, count = self.module(tap), values(tap), 0
        if right is None:
            return
        for names in self.sums(tap):
            if count and len(names) > count:
                return
            if module is None and len(names) < 2:
                continue  # a sum of one value is that value
            made = self.made(module, names, values, torch.float64)
            if made is None or made.shape != right.shape:
                continue
            if rms(difference(made, right)) <= limit * rms(right.astype(np.float64)):
                count = len(names)
                yield names

    def wire(self, tap: str, dumped: Values, truth: Values) -> Wire | None:
        """Return of what a wrong tap is made, if that is one thing, and not what it should be."""
        limit = min(NEAR * EPSILONS[self.model.dtype], 0.05)
        got = list(self.fits(tap, few(dumped), limit))
        if not got:
            return None
        right = list(self.fits(tap, few(truth), SAME))[:1]
        got = [names for names in got if [names] != right]
        return Wire(tap, got[0], (right or [()])[0]) if len(got) == 1 else None


def wires(
    model: TorchModel, found: Survey, port: Alignment, replay: Replayed, wrong: Sequence[str]
) -> list[Wire]:
    """Return the taps that are made of other values than they should be, in order."""
    import torch

    if model.dtype == "float64":
        return []  # whose noise is that of one way alone
    search = Search(model, found, port.names.keys())

    def dumped(name: str) -> np.ndarray | None:
        return fitting(port, name, found.shapes[name])

    seen: list[Wire] = []
    vain: Counter[str] = Counter()
    with held_exactly(model.module), exact():
        for tap in wrong:
            if vain[kind_of(tap)] < TRIES:
                wire = search.wire(tap, dumped, replay.truth.read)
                vain[kind_of(tap)] += wire is None
                seen += [] if wire is None else [wire]
        centres = [search.made(search.module(one.tap), one.got, dumped, torch.float64)
                   for one in seen]  # fmt: skip
    spread: list[list[Any]] = [[] for _ in seen]
    for _, way in ways_of(model.module, model.dtype):
        with way.setting():
            kind = next(model.module.parameters()).dtype
            for one, some in zip(seen, spread, strict=True):
                some.append(search.made(search.module(one.tap), one.got, dumped, kind))
    dtype = dtype_named(model.dtype)
    return [one for one, centre, some in zip(seen, centres, spread, strict=True)
            if judge(np.asarray(dumped(one.tap)), centre, some, dtype).passed]  # fmt: skip


def kind_of(tap: str) -> str:
    """Return what a tap is called in all layers."""
    return LAYER.sub(lambda found: f"{found[1]}*.", parted(tap)[1], count=1)


def few(values: Values) -> Values:
    """Return the first tokens of values, (1, L, ...) or (L, X)."""

    def read(name: str) -> np.ndarray | None:
        x = values(name)
        return x if x is None else x[:, :FEW] if x.ndim > 2 else x[:FEW]

    return read


def layer_of(path: str) -> str:
    found = LAYER.match(path)
    return found[1] + found[2] if found else ""


def is_stream(path: str) -> bool:
    """Say whether a path is that of a layer, or of an embedding."""
    return layer_of(path) == path or path.rpartition(".")[2] in ("embed_tokens", "wte", "drop")


def entering(before: Sequence[str], home: str) -> list[str]:
    """Return the stream as it enters a layer, if it was dumped."""
    streams = [name for name in before if is_stream(parted(name)[1])]
    return streams[-1:] if home else []


def told(found: Sequence[Wire]) -> list[str]:
    """Say each wiring once, for all modules and layers that have it."""
    groups: dict[tuple[Any, ...], list[tuple[Wire, str]]] = {}
    for wire in found:
        home = layer_of(parted(wire.tap)[1])
        short = replace(wire, got=shorts(wire.got, home), right=shorts(wire.right, home))
        more, less = set(short.got) - set(short.right), set(short.right) - set(short.got)
        groups.setdefault((frozenset(more), frozenset(less)), []).append((short, home))
    return [sentence(some) for some in groups.values()]


def shorts(names: Sequence[str], home: str) -> tuple[str, ...]:
    return tuple(short(parted(name)[1], home) for name in names)


def short(path: str, home: str) -> str:
    """Return a path as seen from inside of a layer."""
    if home and path.startswith(f"{home}."):
        return path.removeprefix(f"{home}.")
    if path == home and home:
        return LEAVES
    found = LAYER.match(home)
    before = f"{found[1]}{int(found[2]) - 1}" if found else ""
    first = home.endswith(".0") and is_stream(path)
    return ENTERS if home and (path == before or first) else path


def sentence(some: Sequence[tuple[Wire, str]]) -> str:
    """Say one wiring: what gets what in place of what, and in which layers."""
    taps = list(dict.fromkeys(short(parted(wire.tap)[1], home) for wire, home in some))
    homes = list(dict.fromkeys(home.rpartition(".")[2] for _, home in some if home))
    plain = [wire for wire, home in some if short(parted(wire.tap)[1], home) != LEAVES]
    wire = (plain or [some[0][0]])[0]
    where = f"in layer{'s' * (len(homes) > 1)} {', '.join(homes)} " if homes else ""
    *most, last = taps
    subject = f"{', '.join(most)} and {last} get" if most else f"{last} gets"
    in_place = f" in place of {' + '.join(wire.right)}" if wire.right else ""
    return f"wiring: {where}{subject} {' + '.join(wire.got)}{in_place}"
