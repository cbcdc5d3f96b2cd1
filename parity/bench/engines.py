"""Engines that can be timed: ours and the peers', behind one call for each phase."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lockstep.parity.bench.choice import ACTIVATIONS, OURS
from lockstep.parity.bench.llama_cpp import LlamaCpp
from lockstep.parity.bench.one_by_one import one_by_one
from lockstep.parity.decoders.request import decoding
from lockstep.reference.checkpoint.errors import InputError, show

IMPORTS: dict[str, Callable[[], Any]] = {
    "mlx-lm": lambda: import_module("mlx_lm"),
    "transformers": lambda: import_module("transformers"),
    "llama.cpp": lambda: import_module("llama_cpp"),
}


class Engine(Protocol):
    """A loaded model. `prefill` begins anew with a prompt and returns the most probable next id.
    `decode` feeds that token, and what it makes of it, and yields `count` ids behind it. All are
    computed and in Python's hands."""

    def prefill(self, tokens: list[int]) -> int: ...

    def decode(self, token: int, count: int) -> Iterator[int]: ...


class Ours:
    """A model of `reference` or `fast`, with the package's own greedy decoding."""

    def __init__(self, model: Any):
        self.model, self.cache = model, None

    def prefill(self, tokens: list[int]) -> int:
        self.cache = self.model.make_cache()
        return self.next_of(tokens)

    def decode(self, token: int, count: int) -> Iterator[int]:
        return decoding(self.model, "autoregressive").generate(
            self.model,
            [token],
            max_tokens=count,
            stop=(),
            choose=decoding(self.model, "sampling").greedy,
            cache=self.cache,
        )

    def next_of(self, tokens: list[int]) -> int:
        logits = self.model.forward([tokens], cache=self.cache, last_only=True)[0, 0]
        backend = getattr(self.model, "backend", None)
        return int(np.argmax(logits) if backend is None else backend.argmax(logits))


class MlxLm:
    """A model of mlx-lm, with activations, and what is no packed code, in one dtype. Its own loop
    decodes, which runs a step ahead."""

    def __init__(self, path: Path, dtype: str):
        import mlx.core as mx
        from mlx_lm.utils import load_model

        self.model, _ = load_model(path)
        self.model.set_dtype(getattr(mx, dtype))
        mx.eval(self.model.parameters())
        self.cache: Any = None

    def prefill(self, tokens: list[int]) -> int:
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache

        self.cache = make_prompt_cache(self.model)
        if tokens[:-1]:  # as its own `generate_step`: the head is for the last token alone
            self.model(mx.array([tokens[:-1]]), cache=self.cache)
            mx.eval([layer.state for layer in self.cache])
        return self.next_of(tokens[-1:])

    def decode(self, token: int, count: int) -> Iterator[int]:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        given = mx.array([token])
        made = generate_step(given, self.model, max_tokens=count, prompt_cache=self.cache)
        return (int(found) for found, _ in made)

    def next_of(self, tokens: list[int]) -> int:
        import mlx.core as mx

        return int(mx.argmax(self.model(mx.array([tokens]), cache=self.cache)[0, -1]))


class Transformers:
    """A model of transformers in one dtype, with its own choice of attention."""

    def __init__(self, path: Path, dtype: str):
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar, set_verbosity_error

        disable_progress_bar()
        set_verbosity_error()  # its report of tensors that it ignores; ours has been given
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
        )
        self.cache: Any = None

    def prefill(self, tokens: list[int]) -> int:
        self.cache = None
        return self.next_of(tokens)

    def decode(self, token: int, count: int) -> Iterator[int]:
        return one_by_one(self.next_of, token, count)

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


PEERS: dict[str, Callable[[Path, str], Engine]] = {
    "mlx-lm": MlxLm,
    "transformers": Transformers,
    "llama.cpp": lambda path, form: LlamaCpp(path),
}


def check_installed(name: str) -> None:
    """Import what an engine needs. Raises: InputError if a peer is not installed."""
    try:
        IMPORTS.get(name, lambda: None)()
    except ImportError as error:
        raise InputError(name, f"is not installed ({error.name})") from None


def loaded(
    name: str, path: Path, form: str, *, shown: str, ignore_config: Collection[str]
) -> Engine:
    """Load a checkpoint on one engine, in a dtype or in the type of a GGUF file.

    Raises: InputError if a peer cannot read it, which calls it what is `shown`.
    """
    if name in OURS:
        return Ours(own(name, path, form, ignore_config))
    try:
        engine = PEERS[name](path, form)
        engine.prefill([0])  # one that loads may fail all the same
        return engine
    except Exception as error:  # a peer fails in its own ways on what it cannot read
        raise InputError(name, f"cannot run {shown}: {show(str(error), 120)}") from None


def own(name: str, path: Path, dtype: str, ignored: Collection[str]) -> Any:
    if name == "reference":
        from lockstep.reference.model import load as load_reference

        return load_reference(path, dtype=dtype, ignore_config=ignored)
    from lockstep.fast.model import load as load_fast

    own = ("float32", dtype) if dtype in ACTIVATIONS else (dtype, "float32")
    return load_fast(path, dtype=own[0], activations=own[1], ignore_config=ignored, backend=name)
