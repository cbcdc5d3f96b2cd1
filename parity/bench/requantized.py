"""From one GGUF file to another, by llama.cpp's own quantiser: its K types have no other."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.parity.bench.llama_cpp import library
from lockstep.parity.dumps.crew import cores

BY_LLAMA_CPP = ("Q4_K", "Q5_K", "Q6_K")
FILE_TYPES = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q6_K": "Q6_K"}


def requantize(source: Path, target: Path, kind: str) -> None:
    """Write a file whose matrices all have one of the K types.

    Raises: ImportError without llama-cpp-python; RuntimeError with llama.cpp's own words.
    """
    found = library()
    calls = found.calls
    options = calls.llama_model_quantize_default_params()
    options.ftype = getattr(calls, f"LLAMA_FTYPE_MOSTLY_{FILE_TYPES[kind]}")
    options.pure = True  # else it keeps some matrices in finer types
    options.nthread = cores()
    paths = (os.fsencode(source), os.fsencode(target))
    found.made(calls.llama_model_quantize(*paths, options) == 0)
