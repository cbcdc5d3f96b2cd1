"""Write a checkpoint of 4.6 GB, run the oracle on it, and see what memory that took."""

import argparse
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.oversized.checkpoint import LARGE, size, write_checkpoint
from lockstep.parity.oversized.truth import last_logits
from lockstep.parity.progress import Progress

TOKENS = [(7919 * place) % 30_011 for place in range(1, 17)]
ALLOWANCE = 1 << 30  # bytes beside the largest block twice over
BAR = 5e-5  # of the logits' standard deviation


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lockstep.parity.oversized", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--keep", action="store_true", help="do not delete the folder at the end")
    options = parser.parse_args(arguments)
    needed = size(LARGE)
    parent = next(folder for folder in options.out.absolute().parents if folder.exists())
    if options.out.exists() or shutil.disk_usage(parent).free < needed * 1.1:
        what = f"is there already, or its {needed / 1e9:.1f} GB do not fit"
        print(f"{options.out} {what}", file=sys.stderr)
        return 2
    try:
        with Progress(LARGE["num_hidden_layers"] + 3) as progress:
            write_checkpoint(options.out, LARGE, progress)
        found = measured(options.out, TOKENS)
    finally:
        if not options.keep:
            shutil.rmtree(options.out, ignore_errors=True)
    print("\n".join(f"{name:24} {value}" for name, value in found.items()))
    return 0 if found["within"] else 1


def measured(folder: Path, tokens: list[int]) -> dict[str, Any]:
    """Run the oracle on a folder; return what it took, and how near its last logits are."""
    from lockstep.reference.model import load

    model, begin = load(folder), time.monotonic()
    checkpoint = model.checkpoint
    largest = max(checkpoint.stored(name).nbytes for name in checkpoint.names)
    with Progress(model.config.num_hidden_layers + 2) as progress:
        logits = np.zeros(0)
        for name, value in model.stages([tokens], last_only=True):
            progress(name)
            logits = value
    seconds, peak = time.monotonic() - begin, peak_memory()
    logits, truth = logits[0, -1], last_logits(folder, tokens)
    best = int(truth.argmax())
    error = float(np.abs(logits - truth).max() / truth.std())
    limit = 2 * largest + ALLOWANCE
    return {
        "weights": sum(checkpoint.stored(name).nbytes for name in checkpoint.names),
        "largest block": largest,
        "peak memory": peak,
        "limit": limit,
        "seconds": round(seconds, 1),
        "best token": best,
        "its logit": float(logits[best]),
        "computed otherwise": float(truth[best]),
        "worst error of any logit": error,
        "within": peak <= limit and error <= BAR and int(logits.argmax()) == best,
    }


def peak_memory() -> int:
    """Return the most bytes that this process ever held. macOS counts bytes, Linux kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main())
