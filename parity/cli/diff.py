"""Compare two traces or dumps: safetensors, .npz, or a folder of .npy files.

LEFT is what RIGHT should be. With --model every value of RIGHT is also computed again from
RIGHT's own inputs, so that an error is told apart from what it inherited; one of the two must
then say its token ids, as every trace does, or --tokens must. Of an architecture that Lockstep does
not have it is the torch modules of transformers that compute it again. Where a side is sketched,
both are compared by sketches, and --model only says what each operation reads.

With --resume what is judged goes to FILE at once. If the comparison is interrupted, the same
command goes on from there, to the same result; FILE is deleted when that is shown. It does not go
with sketches, which are compared in seconds, nor with ranks.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lockstep.parity.cli.arguments import add_adapter, add_ignore_config, ids
from lockstep.parity.cli.output import counted, emit, printable
from lockstep.parity.cli.ranks import add_dumps_of_ranks, dumps_of_ranks

HELP = "compare two traces or dumps"
EXAMPLE = """\
  lockstep diff reference.safetensors port.safetensors --model MODEL
  lockstep diff reference.safetensors port.safetensors --model MODEL --resume judged.jsonl
  lockstep diff reference.sketch port.sketch --model MODEL --suspects suspects.txt
  lockstep diff reference.safetensors 'port.{rank}.safetensors' --tensor-parallel 2"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("left", metavar="LEFT", help="a trace or dump of what is right")
    parser.add_argument("right", metavar="RIGHT", help="a trace or dump of the port")
    parser.add_argument("--model", metavar="MODEL", help="the checkpoint that both come from")
    parser.add_argument(
        "--tokens",
        metavar="1,2,3",
        type=ids,
        help="with --model, the prompt where neither side says it",
    )
    parser.add_argument(
        "--backend", choices=("reference", "transformers"),
        help="what computes again (default reference, if it has the architecture)",
    )  # fmt: skip
    parser.add_argument(
        "--resume",
        metavar="FILE",
        help="keep what is judged in FILE, which must be new or its own, and go on from it",
    )
    parser.add_argument(
        "--suspects", metavar="FILE",
        help="of sketches: write the taps to look at next, for `lockstep trace --taps @FILE`",
    )  # fmt: skip
    add_adapter(parser)
    add_ignore_config(parser)
    add_dumps_of_ranks(parser, "RIGHT", "perhaps LEFT")


SKETCHED = "is for whole traces: sketches are compared in seconds"


def refuse_resume(options: Namespace, why: str) -> None:
    """Refuse what would keep nothing. Nothing is written yet."""
    from lockstep.reference.checkpoint.errors import InputError

    if options.resume is not None:
        raise InputError("--resume", why)


def refuse_tokens(options: Namespace) -> None:
    from lockstep.reference.checkpoint.errors import InputError

    if options.tokens is not None:
        raise InputError("--tokens", "is for whole traces: sketches say their prompt")


def refuse_suspects() -> None:
    from lockstep.reference.checkpoint.errors import InputError

    raise InputError("--suspects", "is for sketched traces; of whole ones --model says more")


def run(options: Namespace) -> int:
    from lockstep.parity.diff import diff
    from lockstep.parity.judging.same_tokens import told_tokens
    from lockstep.parity.parallel.rank_files import check_whole
    from lockstep.parity.progress import Progress
    from lockstep.parity.reports.terminal import report
    from lockstep.parity.sketches.sides import Sketched, open_side

    check_sides(options)
    if ranks := dumps_of_ranks(options, options.right):
        return of_ranks(options, ranks)
    dumps_of_ranks(options, options.left)  # which refuses a name for several
    left, right = (check_whole(open_side(one)) for one in (options.left, options.right))
    if isinstance(left, Sketched) or isinstance(right, Sketched):
        from lockstep.parity.cli.sketched import run as run_sketched

        refuse_resume(options, SKETCHED)
        refuse_tokens(options)
        return run_sketched(options, left, right)
    if options.suspects is not None:
        refuse_suspects()
    if options.tokens is not None:
        left, right = told_tokens(left, right, options.tokens)
    model = oracle(options)
    with kept_of(options, left, right, model) as kept, telling(options, kept):
        with Progress(len(right.shapes)) as progress:
            result = diff(left, right, model=model, progress=progress, kept=kept)
        emit(options, result.to_json, lambda: report(result))
    return 0 if result.verdict == "parity" else 1


def check_sides(options: Namespace) -> None:
    """Raises: InputError if LEFT is of ranks, and RIGHT of one."""
    from lockstep.parity.parallel.rank_files import has_ranks
    from lockstep.reference.checkpoint.errors import InputError

    one = Path(options.right).exists() and not has_ranks(options.right)
    if options.ranks > 1 and one and has_ranks(options.left):
        what = "is of one, and LEFT of several ranks: RIGHT is to be of ranks, so swap the two"
        raise InputError(options.right, what, "--tensor-parallel")


def kept_of(options: Namespace, left: Any, right: Any, model: Any) -> Any:
    """Open the journal of an interrupted comparison, if one is asked for, and say what it has."""
    from lockstep.parity.resuming.kept_taps import NOTHING, KeptTaps
    from lockstep.reference.checkpoint.errors import InputError

    if options.resume is None:
        return nullcontext(NOTHING)
    if isinstance(model, str | Path):
        what = "is for the reference and for no model: torch modules judge a prompt at once"
        raise InputError("--resume", what)
    kept = KeptTaps(options.resume, left, right, model)
    if kept.count:
        said = f"{counted(kept.count, 'tap')} judged before, by {options.resume}"
        print(printable(f"lockstep: {said}"), file=sys.stderr)
    return kept


@contextmanager
def telling(options: Namespace, kept: Any) -> Iterator[None]:
    """Say on standard error what a comparison leaves that is interrupted."""
    from lockstep.parity.dumps.trace_file import Unwritten
    from lockstep.reference.checkpoint.errors import InputError

    try:
        yield
    except Unwritten as error:
        raise InputError(error.path, error.what, kept_line(options, kept) or None) from None
    except (KeyboardInterrupt, SystemExit, MemoryError):
        if said := kept_line(options, kept):
            print(printable(f"lockstep: {said}"), file=sys.stderr)
        raise


def kept_line(options: Namespace, kept: Any) -> str:
    """Say what is kept of a comparison that has ended early; nothing if there is nothing."""
    if options.resume is None or not kept.count:
        return ""
    said = f"{counted(kept.count, 'tap')} kept in {options.resume}"
    return f"{said}: the same command goes on there"


def of_ranks(options: Namespace, right: list[Any]) -> int:
    """Compare the dumps of all ranks with those of others, or with one of the whole model."""
    from lockstep.parity.dumps.dump import open_dump
    from lockstep.parity.parallel.diff import diff_ranks
    from lockstep.parity.parallel.rank_files import check_whole, has_ranks
    from lockstep.parity.progress import Progress
    from lockstep.parity.reports.terminal import report
    from lockstep.reference.checkpoint.errors import InputError

    for option in ("resume", "suspects", "tokens"):
        if getattr(options, option) is not None:
            raise InputError(f"--{option}", "does not go with --tensor-parallel")
    if options.model is not None:
        raise InputError("--model", "with --tensor-parallel is for `lockstep explain MODEL RIGHT`")
    oracle(options)  # which refuses what goes with a model
    of_all = has_ranks(options.left)
    left = (
        dumps_of_ranks(options, options.left) if of_all else [check_whole(open_dump(options.left))]
    )
    with Progress(len(right[0].shapes)) as progress:
        result = diff_ranks(left, right, paths=(options.left, options.right), progress=progress)
    emit(options, result.to_json, lambda: report(result))
    return 0 if result.verdict == "parity" else 1


def oracle(options: Namespace) -> Any:
    """Return a reference model, or a path, which means the torch modules of what lies there."""
    from lockstep.reference.checkpoint.errors import InputError

    if options.model is None:
        for name in ("adapter", "backend"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name}", "goes with --model: it says what that is")
        return None
    from lockstep.parity.torch_modules.folder import (
        checked_folder,
        has_reference,
        require_reference,
    )

    if options.backend == "transformers" or (
        options.backend is None and not has_reference(options.model)
    ):
        if options.adapter is not None:
            what = "does not go with transformers; `lockstep fuse` makes one model"
            raise InputError("--adapter", what)
        return checked_folder(options.model)
    from lockstep.parity.cli.loading import load

    require_reference(options.model, "--backend reference", "--backend transformers does not")
    return load(options, "reference", "float32")
