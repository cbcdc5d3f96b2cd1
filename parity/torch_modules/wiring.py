"""Which modules of a port are fed with another value than they should be, where values prove it.

A wrong tap that its module makes, to within rounding, of another value of the port, or of a sum of
some, was fed with that. The layers' own sums are looked at as well.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.judging.judge import EPSILONS, judge
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import parted, step_of, unwrapped
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
AT_ONCE = 2**25  # numbers that sums are judged by together
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
        """Yield the sums that give a tap to within a limit, in float64, the fewest first."""
        import torch

        module, right = self.module(tap), values(tap)
        if right is None:
            return
        for names in self.sums(tap):
            if module is None and len(names) < 2:
                continue  # a sum of one value is that value
            made = self.made(module, names, values, torch.float64)
            if made is None or made.shape != right.shape:
                continue
            if rms(difference(made, right)) <= limit * rms(right.astype(np.float64)):
                yield names

    def near(self, tap: str, dumped: Values, truth: Values) -> list[Wire]:
        """Return of what a wrong tap may be made that it should not be."""
        limit = min(NEAR * EPSILONS[self.model.dtype], 0.05)
        got = list(self.fits(tap, few(dumped), limit))
        if not got:
            return []
        right = next(self.fits(tap, few(truth), SAME), ())
        return [Wire(tap, names, right) for names in got if names != right]

    def proved(self, some: Sequence[Wire], dumped: Values) -> list[Wire]:
        """Return those that give their taps to within rounding, as the judge has it."""
        import torch

        with held_exactly(self.model.module), exact():
            centres = [self.full(one, dumped, torch.float64) for one in some]
        spreads: list[list[Any]] = [[] for _ in some]
        for _, way in ways_of(self.model.module, self.model.dtype):
            with way.setting():
                kind = next(self.model.module.parameters()).dtype
                for one, spread in zip(some, spreads, strict=True):
                    spread.append(self.full(one, dumped, kind))
        dtype = dtype_named(self.model.dtype)
        return [one for one, centre, spread in zip(some, centres, spreads, strict=True)
                if judge(np.asarray(dumped(one.tap)), centre, spread, dtype).passed]  # fmt: skip

    def full(self, wire: Wire, dumped: Values, dtype: Any) -> Any:
        return self.made(self.module(wire.tap), wire.got, dumped, dtype)


def wires(
    model: TorchModel, found: Survey, port: Alignment, replay: Replayed, wrong: Sequence[str]
) -> list[Wire]:
    """Return the taps that are made of one other value than they should be, in order."""
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
                some = search.near(tap, dumped, replay.truth.read)
                vain[kind_of(tap)] += not some
                seen += some
    kept = [one for some in in_parts(seen, found) for one in search.proved(some, dumped)]
    count = Counter(one.tap for one in kept)
    return [one for one in kept if count[one.tap] == 1]


def in_parts(some: Iterable[Wire], found: Survey) -> Iterator[list[Wire]]:
    """Part wires so that what those of a part make is in memory at once, and no more."""
    part, size = list[Wire](), 0
    for one in some:
        numbers = math.prod(found.shapes[one.tap])
        if part and size + numbers > AT_ONCE:
            yield part
            part, size = [], 0
        part, size = [*part, one], size + numbers
    if part:
        yield part


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


def lines_of(found: Sequence[Wire]) -> list[str]:
    """Say each wiring once: of a module for all layers and steps that have it, and of modules
    together if their layers and steps are the same."""
    layers: dict[tuple[Any, ...], list[str]] = {}
    for wire in found:
        step, path = parted(wire.tap)
        home = layer_of(path)
        what = short(path, home), shorts(wire.got, home), shorts(wire.right, home)
        layers.setdefault((*what, step), []).append(home.rpartition(".")[2])
    steps: dict[tuple[Any, ...], list[str]] = {}
    for (*what, step), some in layers.items():
        steps.setdefault((*what, tuple(some)), []).append(str(step_of(step)))
    taps: dict[tuple[Any, ...], list[str]] = {}
    for (tap, *what), some in steps.items():
        taps.setdefault((*what, tuple(some)), []).append(tap)
    return [sentence(some, *what) for what, some in taps.items()]


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


def sentence(
    taps: Sequence[str],
    got: Sequence[str],
    right: Sequence[str],
    layers: Sequence[str],
    steps: Sequence[str],
) -> str:
    """Say one wiring: what gets what in place of what, in which layers and steps."""
    where = numbered("layer", [one for one in layers if one])
    where += numbered("step", [] if steps == ("0",) else steps)
    *most, last = taps
    subject = f"{', '.join(most)} and {last} get" if most else f"{last} gets"
    in_place = f" in place of {' + '.join(right)}" if right else ""
    return f"wiring: {where}{subject} {' + '.join(got)}{in_place}"


def numbered(noun: str, some: Sequence[str]) -> str:
    return f"in {noun}{'s' * (len(some) > 1)} {', '.join(some)} " if some else ""
