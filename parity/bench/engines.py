"""Engines that can be timed: ours and the peers', behind one call for each phase."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lockstep.parity.bench.gguf_copy import Inexact, as_gguf
from lockstep.parity.bench.llama_cpp import LlamaCpp
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.resolve import is_gguf

OURS = ("reference", "mlx", "cpu")
DTYPE = "float32"


class Engine(Protocol):
    """A loaded model. `prefill` begins anew with a prompt and `step` feeds one token; both return
    the id of the most probable next token, computed and in Python's hands."""

    def prefill(self, tokens: list[int]) -> int: ...

    def step(self, token: int) -> int: ...


class Ours:
    """A model of `reference` or `fast`."""

    def __init__(self, model: Any):
        self.model, self.cache = model, None

    def prefill(self, tokens: list[int]) -> int:
        self.cache = self.model.make_cache()
        return self.next_of(tokens)

    def step(self, token: int) -> int:
        return self.next_of([token])

    def next_of(self, tokens: list[int]) -> int:
        logits = self.model.forward([tokens], cache=self.cache, last_only=True)[0, 0]
        backend = getattr(self.model, "backend", None)
        return int(np.argmax(logits) if backend is None else backend.argmax(logits))


class MlxLm:
    """A model of mlx-lm, its weights and activations in float32."""

    def __init__(self, path: Path):
        import mlx.core as mx
        from mlx_lm.utils import load_model

        self.model, _ = load_model(path)
        self.model.set_dtype(mx.float32)
        mx.eval(self.model.parameters())
        self.cache: Any = None

    def prefill(self, tokens: list[int]) -> int:
        from mlx_lm.models.cache import make_prompt_cache

        self.cache = make_prompt_cache(self.model)
        return self.next_of(tokens)

    def step(self, token: int) -> int:
        return self.next_of([token])

    def next_of(self, tokens: list[int]) -> int:
        import mlx.core as mx

        return int(mx.argmax(self.model(mx.array([tokens]), cache=self.cache)[0, -1]))


class Transformers:
    """A model of transformers in float32, with its own choice of attention."""

    def __init__(self, path: Path):
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar, set_verbosity_error

        disable_progress_bar()
        set_verbosity_error()  # its report of tensors that it ignores; ours has been given
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
        self.cache: Any = None

    def prefill(self, tokens: list[int]) -> int:
        self.cache = None
        return self.next_of(tokens)

    def step(self, token: int) -> int:
        return self.next_of([token])

    def next_of(self, tokens: list[int]) -> int:
        import torch

        with torch.inference_mode():
            out = self.model(
                torch.tensor([tokens]),
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self.cache = out.past_key_values
        return int(out.logits[0, -1].argmax())


PEERS: dict[str, Callable[[Path], Engine]] = {
    "mlx-lm": MlxLm,
    "transformers": Transformers,
    "llama.cpp": LlamaCpp,
}
GGUF_READERS = ("llama.cpp",)  # that read nothing else


def engine_named(name: str, path: Path, *, ignore_config: Collection[str]) -> Engine:
    """Load a checkpoint on one engine, in float32.

    Raises: InputError if the engine is unknown, is not installed, or cannot read the checkpoint.
    """
    check_known(name)
    if name in OURS:
        return Ours(loaded(name, path, ignore_config))
    if is_gguf(path) and name not in GGUF_READERS:
        raise InputError(name, f"is given folders, and {path.name} is a GGUF file")
    try:
        engine = peer(name, path, ignore_config)
        engine.prefill([0])  # one that loads may fail all the same
        return engine
    except ImportError as error:
        raise InputError(name, f"is not installed ({error.name})") from None
    except Inexact as error:
        raise InputError(name, f"reads GGUF, and {path.name} has no exact copy: {error}") from None
    except Exception as error:  # a peer fails in its own ways on what it cannot read
        raise InputError(name, f"cannot run {path.name}: {show(str(error), 120)}") from None


def peer(name: str, path: Path, ignored: Collection[str]) -> Engine:
    """Load a checkpoint on a peer; one that reads GGUF alone is given a copy of a folder."""
    if name not in GGUF_READERS:
        return PEERS[name](path)
    import_module("llama_cpp")  # where it is missing no copy is made
    with as_gguf(path, ignore_config=ignored) as file:
        return PEERS[name](file)


def check_known(name: str) -> None:
    """Raises: InputError if no engine has this name."""
    if name not in OURS and name not in PEERS:
        known = ", ".join((*OURS, *PEERS))
        raise InputError("engine", f"{show(name)}, but should be one of {known}")


def loaded(name: str, path: Path, ignored: Collection[str]) -> Any:
    if name == "reference":
        from lockstep.reference.model import load as load_reference

        return load_reference(path, dtype=DTYPE, ignore_config=ignored)
    from lockstep.fast.model import load as load_fast

    return load_fast(path, dtype=DTYPE, ignore_config=ignored, backend=name)
