"""llama.cpp as a witness: its logits, its greedy tokens, its token ids, its reading of blocks.

Nothing of Lockstep is imported here. Needs the group `llama-cpp`.
"""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

THREADS = 1  # tiny models: a second thread only waits, and long where there is other work
CACHES = {"float32": llama_cpp.GGML_TYPE_F32, "float16": llama_cpp.GGML_TYPE_F16}


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: Any) -> None:
    """Drop what llama.cpp has to say: its levels are not those that the package takes them for."""


llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))


def model(path: Path, *, cache: str = "float32", context: int = 64) -> llama_cpp.Llama:
    """Open a file. Keys and values are kept in float32, unless `cache` says otherwise."""
    return llama_cpp.Llama(
        str(path),
        n_ctx=context,
        n_gpu_layers=0,
        n_threads=THREADS,
        n_threads_batch=THREADS,
        logits_all=True,
        swa_full=True,  # of sliding layers too every key is kept, and masked
        type_k=CACHES[cache],
        type_v=CACHES[cache],
        verbose=False,
    )


def logits(path: Path, tokens: np.ndarray, **options: Any) -> np.ndarray:
    """Return the logits of each row, (B, L, V), in float64."""
    opened, rows = model(path, **options), []
    for row in tokens.tolist():
        opened.reset()
        opened.eval(row)
        rows.append(np.array(opened.scores[: len(row)], np.float64))
    opened.close()
    return np.stack(rows)


def greedy(
    path: Path, prompts: Iterable[np.ndarray], count: int, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Continue each prompt with its best tokens: ids (B, count), their logits (B, count, V)."""
    opened, ids, seen = model(path, **options), [], []
    for prompt in prompts:
        opened.reset()
        opened.eval(prompt.tolist())
        row = []
        for _ in range(count):
            row.append(np.array(opened.scores[opened.n_tokens - 1], np.float64))
            opened.eval([int(row[-1].argmax())])
        seen.append(np.stack(row))
        ids.append(seen[-1].argmax(axis=-1))
    opened.close()
    return np.stack(ids), np.stack(seen)


def token_ids(path: Path, texts: Iterable[str]) -> list[list[int]]:
    """Return the ids of each text by the tokenizer of a file, special tokens in the text too."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    opened = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    assert opened, f"llama.cpp cannot open {path}"
    vocabulary, found = llama_cpp.llama_model_get_vocab(opened), []
    for text in texts:
        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(vocabulary, raw, len(raw), ids, len(ids), True, True)
        assert count >= 0, f"no room for the ids of {text!r}"
        found.append(list(ids[:count]))
    llama_cpp.llama_model_free(opened)
    return found


class _Traits(ctypes.Structure):
    """`ggml_type_traits` of ggml.h."""

    _fields_ = [
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    ]


def dequantized(raw: np.ndarray, kind: str) -> np.ndarray:
    """Return what ggml makes of the bytes (rows, size) of a type, in float32."""
    from llama_cpp._ggml import libggml

    look_up = libggml.ggml_get_type_traits
    look_up.argtypes, look_up.restype = [ctypes.c_int], ctypes.POINTER(_Traits)
    traits = look_up(gguf.GGMLQuantizationType[kind]).contents
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    # That the layout of the structure is still the one above.
    assert (traits.blck_size, traits.type_size) == (weights, size), kind
    raw = np.ascontiguousarray(raw)
    found = np.empty((len(raw), raw.shape[-1] // size * weights), np.float32)
    traits.to_float(raw.ctypes.data, found.ctypes.data, found.size)
    return found
