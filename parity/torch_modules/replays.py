"""Compute each tap that a port dumped from the port's own values: in float64, and in legal ways."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.naming.align import Alignment
from lockstep.parity.torch_modules.casting import held_exactly, nearby_frequencies, widened_to
from lockstep.parity.torch_modules.choices import Choice, Choices, Wanted, as_made
from lockstep.parity.torch_modules.forcing import ForcedWalk
from lockstep.parity.torch_modules.loading import TorchModel
from lockstep.parity.torch_modules.orders import orders
from lockstep.parity.torch_modules.rewriting import exact, exchanging, mode_class
from lockstep.parity.torch_modules.survey import Survey
from lockstep.parity.torch_modules.walk import Walk
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

Setting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Way:
    """One way of computing: what has to be set up for it, and whether modules round what they
    hand out to the port's dtype."""

    setting: Setting
    rounds: bool = False


@dataclass(frozen=True)
class Run:
    """A file that holds the dumped taps as one run made them, and what the run chose."""

    file: SafetensorsFile
    choices: Mapping[int, Choice]

    def read(self, name: str) -> np.ndarray:
        return self.file.read(name)


@dataclass(frozen=True)
class Replayed:
    """The model's own run, the float64 replay, and the replay in each legal way, by name.

    The ways choose as the float64 replay does: what a mixture takes another expert for is no noise.
    """

    truth: Run
    centre: Run
    ways: Mapping[str, Run]


class Replays:
    """Makes the runs, one after another, each into a file: no two of them are in memory."""

    def __init__(
        self,
        model: TorchModel,
        port: Alignment,
        found: Survey,
        folder: Path,
        progress: Callable[[str], None],
    ):
        self.model, self.port, self.found = model, port, found
        self.folder, self.progress = folder, progress

    def all(self) -> Replayed:
        """Make all runs, each module choosing as its own scores say."""
        with held_exactly(self.model.module):
            truth = self.made("truth", Way(exact), forced=False)
            centre = self.centre()
        return Replayed(truth, centre, self.ways(centre))

    def centre(self, wanted: Wanted | None = None) -> Run:
        """Make the float64 replay, on weights that are held exactly, with choices that are wanted.

        It takes the place of the one before.
        """
        return self.made("centre", Way(exact), wanted)

    def ways(self, centre: Run) -> dict[str, Run]:
        """Make the legal ways, which choose as the float64 replay does."""
        module, dtype, wanted = self.model.module, self.model.dtype, as_made(centre.choices)
        if dtype == "float64":
            other = Way(lambda: both(exact(), exchanging(orders(dtype))))
            with held_exactly(module):
                return {"orders": self.made("orders", other, wanted)}
        return {name: self.made(name, way, wanted) for name, way in ways_of(module, dtype)}

    def made(
        self, name: str, way: Way, wanted: Wanted | None = None, *, forced: bool = True
    ) -> Run:
        choices = Choices(wanted)
        walker = Walker(self.model, self.port, self.found, way.rounds, self.progress)
        with way.setting(), mode_class()(choices), TraceFile(self.folder / name) as file:
            walker.run(file, choices, forced=forced)
        return Run(SafetensorsFile(self.folder / name), choices.made)


def ways_of(module: Any, dtype: str) -> Iterator[tuple[str, Way]]:
    """Yield the legal ways of a port's dtype, each with a name.

    As transformers does, eagerly and fused; as other engines do, in other orders; and in half
    precision as fused kernels do, which round only what leaves them.
    """
    yield "eager", Way(lambda: both())
    if takes_fused(module):
        yield "fused", Way(lambda: fused(module))
    frequencies = both() if dtype != "float32" else nearby_frequencies(module)
    yield "orders", Way(lambda: both(frequencies, exchanging(orders(dtype))))
    if dtype != "float32":
        yield "wide", Way(lambda: widened_to(module, "float32"), rounds=True)


class Walker:
    """Writes what one run makes of the taps that the port dumped."""

    def __init__(
        self,
        model: TorchModel,
        port: Alignment,
        found: Survey,
        rounds: bool,
        progress: Callable[[str], None],
    ):
        self.model, self.port, self.found = model, port, found
        self.rounds, self.progress = rounds, progress

    def run(self, file: TraceFile, choices: Choices, *, forced: bool) -> None:
        def keep(name: str, made: Any) -> None:
            if name in self.port.names:
                file(name, self.rounded(made))
                self.progress(name)

        module = self.model.module
        walk = ForcedWalk(module, self.value, keep, choices) if forced else Walk(module, keep)
        fed: Sequence[Sequence[int]] = self.found.fed
        for number, tokens in enumerate(fed):
            walk.step(tokens, number, more=number + 1 < len(fed))

    def value(self, name: str, made: Any) -> Any:
        """Return the port's value of a tap, if it fits there; else what was made, rounded."""
        import torch

        if name in self.port.names:
            found = fitting(self.port, name, tuple(made.shape))
            if found is not None:
                return torch.from_numpy(found.astype(np.float64)).to(made.dtype)
        return self.rounded(made) if self.rounds else None

    def rounded(self, made: Any) -> Any:
        import torch

        if not self.rounds:
            return made
        return made.to(getattr(torch, self.model.dtype)).to(made.dtype)


def fitting(port: Alignment, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return what a port dumped as a tap, None if it has another shape or holds no floats."""
    value = port.read(name, shape)
    return None if value.shape != shape or value.dtype.kind in "iubc" else value


def takes_fused(module: Any) -> bool:
    return bool(getattr(module, "_supports_sdpa", False))


@contextmanager
def fused(module: Any) -> Iterator[None]:
    """Let attention run in torch's fused kernel inside of a block."""
    module.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        module.set_attn_implementation("eager")


@contextmanager
def both(*settings: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for setting in settings:
            stack.enter_context(setting)
        yield
