"""One cache at one length, in a process of its own: its memory is nobody else's.

    python -m lockstep.parity.bench.context '{"model": ..., "backend": ..., "kind": ..., ...}'

The request is one argument in JSON, the answer one line of standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from lockstep.parity.bench.cache_bytes import cache_bytes
from lockstep.parity.bench.footprint import begin_anew, footprint
from lockstep.parity.bench.measure import prompt_of
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.precision import dtype_named
from lockstep.reference.stores.kinds import CacheOptions


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Read a prompt by chunks, then go on token by token; return seconds and bytes."""
    model, length = loaded(request), request["length"]
    tokens = np.array([prompt_of(length, model.config.vocab_size)])
    options = CacheOptions(**request["told"])
    device = device_of(model)
    run(model, model.make_cache(request["kind"], **request["told"]), tokens[:, :2])  # warm
    device.begin()
    alone, before = begin_anew(), footprint()
    cache = model.make_cache(request["kind"], **request["told"])
    began, busy = time.perf_counter(), time.process_time()
    for start in range(0, length, request["chunk"]):
        run(model, cache, tokens[:, start : start + request["chunk"]])
    prefill, prefill_busy = time.perf_counter() - began, time.process_time() - busy
    steps = [step(model, cache, tokens) for _ in range(request["steps"])]
    after, held = footprint(), length + request["steps"]
    size = dtype_named(model.dtype).itemsize
    return {
        "prefill_s": prefill, "prefill_cpu_s": prefill_busy,
        "step_s": min(one for one, _ in steps), "step_cpu_s": min(one for _, one in steps),
        "cache_arithmetic": cache_bytes(request["kind"], model.config, size, held, options),
        "cache_held": cache.nbytes, "loaded": before.now, "peak": after.peak,
        "peak_is_alone": alone, "files": after.files, **device.said(),
    }  # fmt: skip


def loaded(request: dict[str, Any]) -> Any:
    if request["backend"] == "reference":
        from lockstep.reference.model import load

        return load(request["model"])
    from lockstep.fast.model import load as load_fast

    return load_fast(request["model"], backend=request["backend"])


def run(model: Any, cache: Any, tokens: np.ndarray) -> None:
    """Let tokens go through the model and into the cache, and wait until they have."""
    logits = model.forward(tokens, cache=cache, last_only=True)
    backend = getattr(model, "backend", None)
    if backend is not None:
        backend.evaluate(logits, *cache.arrays())


def step(model: Any, cache: Any, tokens: np.ndarray) -> tuple[float, float]:
    """Return the seconds of one token behind all others, by the clock and of the processor."""
    began, busy = time.perf_counter(), time.process_time()
    run(model, cache, tokens[:, :1])
    return time.perf_counter() - began, time.process_time() - busy


class NoDevice:
    """A backend whose memory is the process's own."""

    def begin(self) -> None:
        """Count from here."""

    def said(self) -> dict[str, int]:
        return {}


class Mlx(NoDevice):
    """MLX counts the buffers that it hands out itself, on a GPU too."""

    def begin(self) -> None:
        import mlx.core as mx

        mx.clear_cache()
        mx.reset_peak_memory()

    def said(self) -> dict[str, int]:
        import mlx.core as mx

        return {"device_peak": mx.get_peak_memory(), "device_active": mx.get_active_memory(),
                "device_cache": mx.get_cache_memory()}  # fmt: skip


def device_of(model: Any) -> NoDevice:
    return Mlx() if model.runs_on == "mlx" else NoDevice()


def main() -> int:
    """Answer one request. What libraries print does not mix with the answer."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        answer = {"done": measured(json.loads(sys.argv[1]))}
    except InputError as error:
        answer = {"refused": [error.path, error.what, error.where]}
    except MemoryError:
        answer = {"refused": ["memory", "is not enough", None]}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
