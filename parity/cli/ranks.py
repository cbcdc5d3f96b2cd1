"""`--tensor-parallel`: this process as one rank of several, or as the one that starts them."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.parity.cli.arguments import above_zero

# What is refused beside it, and why.
ALONE = {
    "expert_budget": "each rank would have one of its own",
}


def add_ranks(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--tensor-parallel", metavar="N", type=above_zero, default=1,
        help="deal every layer out to N processes, which are started here; under mlx.launch, to "
        "those that it started (default 1)",
    )  # fmt: skip


def add_dumps_of_ranks(parser: ArgumentParser, *places: str) -> None:
    parser.add_argument(
        "--tensor-parallel", dest="ranks", metavar="N", type=above_zero, default=1,
        help=f"{' and '.join(places)} is of N ranks that the model was dealt out to: its name with "
        "{rank} for the number of each, or a folder with rank0.safetensors and so on",
    )  # fmt: skip


def dumps_of_ranks(options: Namespace, given: str) -> list[Any]:
    """Open the dumps of all ranks, none if there is one of the whole model.

    Raises: InputError if one has none, and where nobody says how many ranks there are.
    """
    from lockstep.parity.parallel.rank_files import has_ranks, open_ranks
    from lockstep.reference.checkpoint.errors import InputError

    if options.ranks > 1:
        return open_ranks(given, options.ranks)
    if has_ranks(given):
        raise InputError(given, "is of several ranks: say how many by --tensor-parallel N (2 ...)")
    return []


def check_options(options: Namespace) -> None:
    """Raises: InputError for what does not go with several ranks."""
    from lockstep.parity.parallel.rank_files import check_one_name, check_pattern
    from lockstep.reference.checkpoint.errors import InputError

    if options.tensor_parallel == 1:
        check_one_name(options.save_cache or "")
        return
    for name, why in ALONE.items():
        if getattr(options, name) is not None:
            raise InputError("--tensor-parallel", f"does not go with {flag(name)}: {why}")
    for name in ("load_cache", "save_cache"):
        given = getattr(options, name)
        if given is not None and options.backend == "reference":
            what = f"does not go with {flag(name)} on the reference, whose ranks have one process"
            raise InputError("--tensor-parallel", what)
        if given is not None:
            check_pattern(given)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def starts_ranks(options: Namespace) -> bool:
    """Tell whether this process has to start the ranks: it is none, and they are processes."""
    if options.tensor_parallel == 1 or options.backend == "reference":
        return False
    check_mlx()
    from lockstep.fast.parallel.group import launched

    return not launched()


def one_prompt(options: Namespace, checkpoint: Any) -> list[int]:
    """Return the ids of the prompt. Raises: InputError if it is a batch of several."""
    from lockstep.parity.cli.loading import prompt_rows
    from lockstep.reference.checkpoint.errors import InputError

    rows = prompt_rows(options, checkpoint)
    if len(rows) > 1:
        raise InputError("--tensor-parallel", f"takes one prompt, not a batch of {len(rows)}")
    return rows[0]


def check_mlx() -> None:
    from lockstep.fast.backends import has_mlx
    from lockstep.reference.checkpoint.errors import InputError

    if not has_mlx():
        raise InputError("--tensor-parallel", "the mlx package is not installed: ranks meet by it")


def start_ranks(options: Namespace, checkpoint: Any) -> int:
    """Run this very command as N ranks; return its exit code.

    What all of them would refuse is refused here, once.
    Raises: InputError if the model, or the adapter, cannot be dealt out.
    """
    from lockstep.fast.parallel.launch import launch
    from lockstep.reference.checkpoint.adapters import open_adapter
    from lockstep.reference.checkpoint.parallel.adapting import adapters_of
    from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
    from lockstep.reference.checkpoint.parallel.shares import check_ranks

    ranks, ignored = options.tensor_parallel, options.ignore_config
    check_ranks(checkpoint, ranks)
    if options.adapter is not None:
        found = open_adapter(options.adapter, checkpoint, ignore_config=ignored)
        adapters_of(found, RankCheckpoint(checkpoint, 0, ranks))
    ended = launch([sys.executable, "-m", "lockstep.parity.cli", *options.arguments], ranks)
    return say_who_failed(ended, ranks)


def say_who_failed(ended: Any, ranks: int) -> int:
    """Say which rank failed and how, unless rank 0 has said it; return the exit code."""
    from lockstep.fast.parallel.lost import LEFT_ALONE, TAKEN
    from lockstep.parity.cli.boundary import BAD_INPUT, INTERNAL, say
    from lockstep.reference.checkpoint.errors import show

    who = f"error: rank {ended.rank} of {ranks}"
    number = signal_of(ended.code)
    if number:
        how = f"was ended by signal {number} ({signal.strsignal(number)})"
        return say(f"{who} {how}, so all were ended", INTERNAL)
    if ended.code == LEFT_ALONE:
        return say("error: the ranks lost each other, so all were ended", INTERNAL)
    if ended.code == TAKEN:
        return say("error: other programs took the ports of the ranks, time and again", BAD_INPUT)
    if ended.code and ended.rank:
        last = f": {show(ended.said, 200)}" if ended.said else ""
        return say(f"{who} ended with exit code {ended.code}{last}", ended.code)
    return ended.code


def signal_of(code: int) -> int:
    """Return the signal that ended a rank, 0 if none did: it may have left in order, as at 143."""
    left = code - 128 in (signal.SIGTERM, signal.SIGHUP)
    return code - 128 if left else max(-code, 0)


def load_rank(options: Namespace, checkpoint: Any, backend: Any, dtype: str, progress: Any) -> Any:
    """Meet the other ranks, and load what this one has of the model. Only rank 0 will speak."""
    from lockstep.fast.parallel.group import join
    from lockstep.fast.parallel.lost import follow_starter, listen_to_ring
    from lockstep.fast.parallel.model import ParallelModel
    from lockstep.parity.cli.output import silence

    follow_starter()
    listen_to_ring()
    group = join(options.tensor_parallel)
    if group.rank:
        silence()
        options.json = None
    return ParallelModel(checkpoint, group=group, dtype=dtype, backend=backend, progress=progress)


def load_here(checkpoint: Any, ranks: int, dtype: str) -> Any:
    """Return the reference's model of several ranks, which run in this process."""
    from lockstep.reference import ops
    from lockstep.reference.parallel.model import ParallelModel

    return ParallelModel(checkpoint, ranks=ranks, dtype=dtype, ops=ops)


@contextmanager
def while_together(options: Namespace) -> Iterator[None]:
    """Let a rank that has lost another one end at once."""
    try:
        yield
    except RuntimeError as error:
        if options.tensor_parallel == 1 or not str(error).startswith("[ring]"):
            raise
        from lockstep.fast.parallel.lost import end_alone

        end_alone(sys.stderr.fileno())


def traffic_of(model: Any, fed: int) -> dict[str, Any]:
    """Return how many ranks there are, and what each one gave to the others, for the JSON."""
    group = getattr(model, "group", None)
    if group is None:
        return {}
    traffic = group.traffic
    given = traffic.summed_bytes + traffic.gathered_bytes
    return {"ranks": group.size, **vars(traffic), "bytes_per_token": given / max(fed, 1)}


def said_of(traffic: dict[str, Any]) -> str:
    """Return the same for a person, a phrase for the line at the end; "" for one rank."""
    if not traffic:
        return ""
    return f"{traffic['ranks']} ranks that gave {traffic['bytes_per_token'] / 1000:.1f} kB a token"
