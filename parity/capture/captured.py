"""What a capture collected: a dump in memory, with what it cost and what a reader should know."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.dumps.dump import FORMAT, VERSION, Dump
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.excerpts.excerpt import Excerpt, excerpt_of
from lockstep.parity.naming.names import is_tap, tap_named
from lockstep.reference.checkpoint.errors import InputError

SAYS_ITSELF = ("format", "version", "tokens")
OTHER_PASS = "pass {number} is no continuation by one token: its tensors are named pass.{number}/"
BATCH = "the prompt is a batch of {rows} rows, so no token ids are said"
IDLE = "{count} of {total} modules with weights were not called, such as {name}"


ATTENTION = re.compile(r"(?:.*\.)?(?:layers|h)\.([0-9]+)\.(?:self_attn|attn)")

Rows = tuple[list[list[int]], list[list[bool]]]  # ids of a batch, and which are no padding


@dataclass
class Cost:
    """What capturing took: seconds in hooks, bytes of what is kept, calls that were seen."""

    seconds: float = 0.0
    nbytes: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Captured(Dump):
    """A dump that is filled while a model runs. `parity.diff` takes it as it is.

    `notes` says what a reader should know: modules that ran more than once, outputs that no trace
    can hold, passes that are no continuation of the first.
    """

    cost: Cost = field(default_factory=Cost)
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long the hooks took, which is what the capture added to the run."""
        return self.cost.seconds

    @property
    def nbytes(self) -> int:
        return self.cost.nbytes

    def save(self, path: str | Path) -> None:
        """Write a trace file. Raises: InputError if it cannot be written."""
        said = {key: value for key, value in self.about.items() if key not in SAYS_ITSELF}
        with TraceFile(path, tokens=self.tokens or [], **said) as file:
            if "tokens" not in self.about:
                del file.writer.header["__metadata__"]["tokens"]
            for name in self.shapes:
                file(name, self.read(name))

    def to_json(self) -> dict[str, Any]:
        cost = {"seconds": self.seconds, "bytes": self.nbytes, "calls": self.cost.calls}
        return {"tensors": len(self.shapes), "about": dict(self.about), **cost, "notes": self.notes}


def tokens_at(at: str, length: int | None) -> Excerpt:
    """Return which tokens of a captured prompt `at` means; `length` is None where it is no one row.

    Raises: InputError if it is none, or has no such tokens.
    """
    if length is None:
        raise InputError("at", f"{at} needs one prompt of token ids, not a batch")
    found = excerpt_of(at, [length])
    assert found is not None
    return found


class Collection:
    """The tensors of a capture as they come in, and the dump that they make."""

    def __init__(self, model: str, backend: str):
        self.tensors: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.repeated: dict[str, int] = {}
        self.continued: set[int] = set()  # passes of several tokens that went on from a cache
        self.about = {"format": FORMAT, "version": VERSION, "model": model, "backend": backend}
        self.dump = Captured(
            Path(f"capture of {model}"), self.shapes, self.tensors.__getitem__, self.about
        )

    def add(self, name: str, array: np.ndarray) -> None:
        """Keep one output. From its second call on a module's outputs are `name@1`, `name@2`:
        nothing says which of them is the tap."""
        count = self.repeated.get(name, 0) + 1
        self.repeated[name] = count
        if count == 2:
            self.keep(f"{name}@1", self.tensors.pop(name))
            del self.shapes[name]
        self.keep(name if count == 1 else f"{name}@{count}", array)
        self.dump.cost.nbytes += array.nbytes
        self.dump.cost.calls += 1

    def keep(self, name: str, array: np.ndarray) -> None:
        self.tensors[name], self.shapes[name] = array, array.shape

    def prefix(self, number: int, length: int | None, *, goes_on: bool = False) -> str:
        """Return what stands before the names of a pass of `length` tokens, counted from 0.

        `goes_on` says that it is known to go on from the cache of the pass before.
        """
        if number and length != 1 and not (goes_on and length):
            self.note(OTHER_PASS.format(number=number + 1))
            return f"pass.{number + 1}/"
        self.continued |= {number} if number and length != 1 else set()
        return f"step.{number}/" if number else ""

    def note(self, text: str) -> None:
        if text not in self.dump.notes:
            self.dump.notes.append(text)

    def finish(self) -> None:
        """Say what is known of the whole. Raises: InputError if it cannot be a model's run."""
        if not self.tensors:
            what = "nothing was captured: no module inside ran; call the model inside of the block"
            raise InputError(self.dump.path, what)
        self.check_layers()
        self.check_steps()
        if dtype := usual_dtype(self.tensors):
            self.about["dtype"] = dtype
        again = {n: count for n, count in self.repeated.items() if count > 1 and means_tap(n)}
        if again:
            name, count = next(iter(again.items()))
            what = f"{len(again)} modules ran more than once in one pass, {name} {count} times"
            self.dump.notes.append(f"{what}: their outputs are kept apart as {name}@1 and so on")

    def check_layers(self) -> None:
        """Refuse layers that all hand out the same bytes: what was kept is then no activation.

        NaN is one: a broken port may hold nothing else from its first layer on.
        """
        layers = [name for name in self.tensors if is_layer(name)]
        first = self.tensors[layers[0]] if layers else None
        same = [name for name in layers if alike(self.tensors[name], first)]
        if len(layers) > 2 and len(same) == len(layers):
            what = f"all {len(layers)} layers handed out the same values, so this is no run"
            raise InputError(self.dump.path, what, f"{layers[0]} to {layers[-1]}")

    def check_steps(self) -> None:
        """Refuse layers that gave the same bytes in every step: they were recorded once, and not
        computed again. Steps of one and the same token may be alike, so they say nothing."""
        fed = [tuple(ids) for ids in self.dump.fed]
        if len(set(fed)) < 2:
            return
        first = [name for name in self.tensors if name.startswith("step.1/")]
        still = [name for name in first if self.is_still(name.partition("/")[2], len(fed))]
        layers = [name for name in first if is_layer(name)]
        if layers and set(layers) <= set(still):
            what = f"no layer's values changed in {len(fed)} steps, so this is no run"
            raise InputError(self.dump.path, what, f"{layers[0]} to step.{len(fed)}")
        if still := [name for name in still if means_tap(name)]:
            what = f"{len(still)} tensors are the same in all {len(fed)} steps, such as {still[0]}"
            self.note(what)

    def is_still(self, path: str, steps: int) -> bool:
        """Say whether something has the same bytes in every step."""
        found = [self.tensors.get(f"step.{number}/{path}") for number in range(1, steps + 1)]
        return all(one is not None and alike(one, found[0]) for one in found)

    def fed_rows(self, passes: list[Rows | None]) -> None:
        """Say the ids of a batch: of each row those that are real, and what continues it."""
        if not passes or passes[0] is None:
            return
        ids, real = passes[0]
        self.about["batch"] = json.dumps([chosen(*row) for row in zip(ids, real, strict=True)])
        self.about["padding"] = "right" if all(row[0] for row in real) else "left"
        steps = [one[0] for one in passes[1:] if one is not None and len(one[0]) == len(ids)]
        if steps and len(steps) == len(passes) - 1:
            later = zip(*steps, strict=True)
            self.about["batch_decoded"] = json.dumps([[*chain(*row)] for row in later])
            self.say_lengths([len(rows[0]) for rows in steps])

    def say_lengths(self, lengths: list[int]) -> None:
        """Say how many tokens each step was fed, if not one."""
        if set(lengths) != {1}:
            self.about["step_lengths"] = json.dumps(lengths)

    def fed(self, passes: list[list[int] | None]) -> None:
        """Say the ids of the first pass, and those of the passes that continue it."""
        if not passes or passes[0] is None:
            return
        self.about["tokens"] = json.dumps(passes[0])
        steps = [
            ids for number, ids in enumerate(passes[1:], 1)
            if ids and (len(ids) == 1 or number in self.continued)
        ]  # fmt: skip
        if steps and len(steps) == len(passes) - 1:
            self.about["decoded"] = json.dumps([one for ids in steps for one in ids])
            self.say_lengths([len(ids) for ids in steps])


def chosen(ids: list[int], real: list[bool]) -> list[int]:
    return [one for one, kept in zip(ids, real, strict=True) if kept]


def attention_paths(names: Iterable[str]) -> dict[int, str]:
    """Return the path of each layer's attention among the modules of a model."""
    found: dict[int, str] = {}
    for name in names:
        if (match := ATTENTION.fullmatch(name)) is not None:
            found.setdefault(int(match[1]), name)
    return found


def is_layer(name: str) -> bool:
    return means_tap(name) and tap_named(name).rpartition(".")[2].isdigit()


def means_tap(name: str) -> bool:
    return is_tap(tap_named(name))


def alike(left: np.ndarray, right: np.ndarray | None) -> bool:
    """Say whether two hold the same bytes, and these are more than NaN."""
    if right is None or (left.shape, left.dtype) != (right.shape, right.dtype):
        return False
    return left.tobytes() == right.tobytes() and not is_nan(left)


def is_nan(array: np.ndarray) -> bool:
    return bool(array.size) and bool((array != array).all())


def usual_dtype(tensors: dict[str, np.ndarray]) -> str | None:
    """Return the floating dtype of most outputs, None if there is no such."""
    kinds = [array.dtype.name for array in tensors.values()]
    kinds = [kind for kind in kinds if kind.startswith(("float", "bfloat"))]
    usual = max(set(kinds), key=kinds.count, default=None)
    return usual if usual and 2 * kinds.count(usual) > len(kinds) else None
