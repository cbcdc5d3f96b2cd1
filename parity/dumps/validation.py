"""Say whether a file is a right trace or dump, and what is in it; docs/parity/dump-format.md.

Each tensor is read once and not kept, so a dump may be larger than memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.parity.chain.said import said_by
from lockstep.parity.chain.said_warnings import words_of
from lockstep.parity.dumps.contents import Found, measured
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.dumps.validation_warnings import warnings_of
from lockstep.parity.excerpts.dumped import excerpt_in
from lockstep.reference.checkpoint.safetensors import SafetensorsFile


@dataclass(frozen=True)
class Validation:
    """A dump that can be read to its last byte, with what would make it useless."""

    dump: Dump
    tensors: list[Found]
    warnings: list[str]

    @property
    def generated(self) -> list[int] | None:
        """The answer that a port says it handed out, None if it does not."""
        said = said_by(self.dump)
        return said.answer if said.own_answer and said.answer else None

    @property
    def kind(self) -> str:
        if not self.dump.shapes:
            return "run in words"
        return "trace" if self.dump.is_trace else "bare dump"

    @property
    def steps(self) -> list[int]:
        return sorted({one.step for one in self.tensors})

    @property
    def dtypes(self) -> dict[str, int]:
        return dict(Counter(one.dtype for one in self.tensors).most_common())

    def to_json(self) -> dict[str, Any]:
        return {
            "valid": True,
            "kind": self.kind,
            "metadata": dict(self.dump.about),
            "tokens": self.dump.tokens,
            "decoded": self.dump.decoded,
            "steps": self.steps,
            "dtypes": self.dtypes,
            "bytes": sum(one.nbytes for one in self.tensors),
            "tensors": [one.to_json() for one in self.tensors],
            "warnings": self.warnings,
        }


def validate(path: str | Path, *, progress: Callable[[str], None] | None = None) -> Validation:
    """Read a trace or a bare dump to its last byte. `progress` is called before each tensor.

    Raises: InputError if it is none: the file, the place, the value and what is allowed.
    """
    dump = open_dump(path, words=True)
    check_words(dump)
    tensors = list(measured(dump, progress or (lambda name: None)))
    odd = SafetensorsFile(dump.path).warnings if is_safetensors(dump.path) else []
    told = warnings_of(dump, tensors) if dump.shapes else []
    return Validation(dump, tensors, [*odd, *told, *words_of(dump)])


def check_words(dump: Dump) -> None:
    """Raise InputError if a key is nonsense. A bare dump may mean anything by its keys."""
    said_by(dump)
    if not dump.is_trace:
        return
    for key in ("fed", "step_lengths", "batch", "padding"):
        getattr(dump, key)
    if "positions" in dump.about:
        excerpt_in(dump, dump.batch or [dump.tokens or []])


def is_safetensors(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".npz", ".json")
