"""Which engines are asked for, and in what each computes: `mlx-lm`, `mlx-lm:bfloat16`."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.parity.bench.gguf_types import WRITTEN
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.resolve import is_gguf

OURS = ("reference", "mlx", "cpu")
THEIRS = ("mlx-lm", "transformers", "llama.cpp")
GGUF_READERS = ("llama.cpp",)  # that read nothing else
DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS = ("int16", "int8")  # of prompts, beside packed weights; all else is float32


@dataclass(frozen=True)
class Choice:
    """An engine, and what it is to compute in: a dtype; of llama.cpp the type of its copy."""

    name: str
    form: str | None

    @property
    def label(self) -> str:
        return self.name if self.form is None else f"{self.name}:{self.form}"

    @property
    def forms(self) -> tuple[str, ...]:
        if self.name in GGUF_READERS:
            return WRITTEN
        own = {"reference": ("float64", *DTYPES), "cpu": (*DTYPES, *ACTIVATIONS)}
        return own.get(self.name, DTYPES)


def choices_of(text: str) -> list[Choice]:
    """Return the engines of a list, each once. Raises: InputError if one is unknown."""
    found = []
    for word in filter(None, text.split(",")):
        name, sign, form = word.partition(":")
        found.append(Choice(name, form if sign else None))
        check(found[-1])
    return list(dict.fromkeys(found))


def check(choice: Choice) -> None:
    """Raises: InputError if there is no such engine, or it has no such form."""
    if choice.name not in (*OURS, *THEIRS):
        known = ", ".join((*OURS, *THEIRS))
        raise InputError("engine", f"{show(choice.name)}, but should be one of {known}")
    if choice.form is not None and choice.form not in choice.forms:
        known = ", ".join(choice.forms)
        raise InputError(choice.name, f"{show(choice.form)}, but should be one of {known}")


def check_readable(choice: Choice, checkpoint: Checkpoint) -> None:
    """Raises: InputError if a peer is not for GGUF files, or a file is to be copied for one."""
    if not is_gguf(checkpoint.path):
        return
    if choice.name in THEIRS and choice.name not in GGUF_READERS:
        raise InputError(
            choice.name, f"is given folders, and {checkpoint.path.name} is a GGUF file"
        )
    if choice.name in GGUF_READERS and choice.form is not None:
        what = f"{choice.form} is for copies of folders, and {checkpoint.path.name} is a GGUF file"
        raise InputError(choice.name, what)


def dtype_of(choice: Choice, checkpoint: Checkpoint, dtype: str | None) -> str:
    """Return what an engine computes in: what its name says, else `dtype`, else what is usual.

    Usual is what `generate` takes by itself; for mlx-lm what our own MLX takes, for transformers
    float32. llama.cpp chooses for itself, by the weights.
    """
    from lockstep.parity.generating.generation import own_dtype

    if choice.name in GGUF_READERS:
        return "its own"
    if choice.form is not None or dtype is not None:
        return choice.form or str(dtype)
    if choice.name == "transformers":
        return "float32"
    return own_dtype(checkpoint, "mlx" if choice.name == "mlx-lm" else choice.name)
