"""llama.cpp behind the calls of the benchmark, by the bindings of llama-cpp-python."""

import ctypes
import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.bench.one_by_one import one_by_one
from lockstep.parity.dumps.crew import cores

SMALLEST = 256  # tokens of a context; llama.cpp rounds up to it anyway
ERROR = 4  # of ggml's levels of messages


class Library:
    """llama.cpp, which now prints nothing. `said` has its errors: they explain a failure."""

    def __init__(self):
        self.calls: Any = import_module("llama_cpp")
        self.said: list[str] = []

        @self.calls.llama_log_callback
        def listen(level: int, text: bytes, data: Any) -> None:
            if level == ERROR:
                self.said.append(text.decode(errors="replace").strip())

        self.listener = listen  # C holds no reference
        self.calls.llama_log_set(listen, ctypes.c_void_p(0))
        self.calls.llama_backend_init()

    def made(self, value: Any) -> Any:
        """Return what a call made. Raises: RuntimeError with its first error if that is nothing."""
        if not value:
            raise RuntimeError(self.said[0] if self.said else "llama.cpp gave no reason")
        return value


@cache
def library() -> Library:
    return Library()


class LlamaCpp:
    """A GGUF file in llama.cpp: its own kernels, and as many threads as there are cores.

    Keys and values are kept in float32; its own choice would be float16.
    """

    def __init__(self, path: Path):
        self.library = library()
        self.library.said.clear()
        self.calls = self.library.calls
        options = self.calls.llama_model_default_params()
        loaded = self.calls.llama_model_load_from_file(os.fsencode(path), options)
        self.model = self.library.made(loaded)
        vocabulary = self.calls.llama_model_get_vocab(self.model)
        self.vocab_size = self.calls.llama_vocab_n_tokens(vocabulary)
        self.context: Any = None
        self.room, self.fed = 0, []

    def prefill(self, tokens: list[int]) -> int:
        self.fed = []
        if self.context:
            self.calls.llama_memory_clear(self.calls.llama_get_memory(self.context), True)
        return self.next_of(tokens)

    def decode(self, token: int, count: int) -> Iterator[int]:
        return one_by_one(self.next_of, token, count)

    def next_of(self, tokens: list[int]) -> int:
        if len(self.fed) + len(tokens) > self.room:
            tokens = self.make_room(tokens)
        self.fed = self.fed + tokens
        self.library.said.clear()
        ids = (self.calls.llama_token * len(tokens))(*tokens)  # the batch only points to it
        batch = self.calls.llama_batch_get_one(ids, len(tokens))
        self.library.made(self.calls.llama_decode(self.context, batch) == 0)
        logits = self.calls.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())

    def make_room(self, tokens: list[int]) -> list[int]:
        """Make a context of twice the size, and return all tokens, which it has yet to see.

        The size of a context is fixed when it is made. It never shrinks, so this happens in the
        warm-up and in no round that counts.
        """
        self.free_context()
        tokens, self.fed = self.fed + tokens, []
        options = self.calls.llama_context_default_params()
        self.room = max(SMALLEST, 2 * len(tokens))
        options.n_ctx = options.n_batch = self.room
        options.n_threads = options.n_threads_batch = cores()
        options.type_k = options.type_v = self.calls.GGML_TYPE_F32
        self.context = self.library.made(self.calls.llama_init_from_model(self.model, options))
        return tokens

    def free_context(self) -> None:
        if self.context:
            self.calls.llama_free(self.context)
            self.context = None

    def __del__(self) -> None:
        if getattr(self, "model", None):
            self.free_context()
            self.calls.llama_model_free(self.model)
