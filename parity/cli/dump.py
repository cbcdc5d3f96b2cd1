"""Look at a file of activations by itself, before any model is at hand.

`validate` reads a trace or a bare dump to its last byte, says what is in it, and warns of what
would make it useless. Exit code 0: it can be read; 2: it breaks a rule, and one line says which.
`sketch` writes some hundred bytes of each tensor, which `lockstep diff` compares with others.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from lockstep.parity.cli.output import counted, emit, printable, table

if TYPE_CHECKING:
    from lockstep.parity.dumps.contents import Found
    from lockstep.parity.dumps.validation import Validation

HELP = "whether a file of activations is right, and what is in it"
EXAMPLE = """\
  lockstep dump validate port.safetensors
  lockstep dump sketch port.safetensors -o port.sketch"""
IDS, NAMES, WIDTH = 12, 40, 64  # how much of a long list and of a long name is shown


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("validate", "sketch"), help="what to do")
    parser.add_argument(
        "dump", metavar="FILE", help="safetensors, .npz, .json or a folder of .npy files"
    )
    parser.add_argument(
        "-o",
        "--out",
        dest="out_file",
        metavar="FILE",
        help="the sketched trace that `sketch` writes",
    )


def run(options: Namespace) -> int:
    from lockstep.reference.checkpoint.errors import InputError

    if options.action == "sketch":
        return sketch(options)
    if options.out_file is not None:
        raise InputError("--out", "goes with `dump sketch`; --json writes what validate says")
    from lockstep.parity.dumps.dump import open_dump
    from lockstep.parity.dumps.validation import validate
    from lockstep.parity.progress import Progress

    with Progress(len(open_dump(options.dump, words=True).shapes)) as progress:
        found = validate(options.dump, progress=progress)
    emit(options, found.to_json, lambda: as_text(found))
    return 0


def sketch(options: Namespace) -> int:
    """Write the sketches of a dump."""
    from pathlib import Path

    from lockstep.parity.cli.output import in_units
    from lockstep.parity.cli.targets import check_trace_target
    from lockstep.parity.dumps.dump import open_dump
    from lockstep.parity.progress import Progress
    from lockstep.parity.sketches.writing import sketch_dump
    from lockstep.reference.checkpoint.errors import InputError, show

    if options.out_file is None:
        raise InputError("--out", "is needed: the file that the sketches go to")
    check_trace_target(Path(options.out_file))
    dump = open_dump(options.dump)
    with Progress(len(dump.shapes)) as progress:
        made = sketch_dump(dump, options.out_file, progress=progress)
    size = in_units(made["bytes"])
    said = f"{counted(made['tensors'], 'tensor')} sketched, {size} -> {made['file']}"
    if left_out := made["left_out"]:
        one = left_out[0]
        which = f"{show(one['name'], NAMES)} of {one['dtype']}" + ", ..." * (len(left_out) > 1)
        said += f"\n{counted(left_out, 'tensor')} left out, which no trace can hold: {which}"
    emit(options, lambda: made, lambda: printable(said))
    return 0


def as_text(found: Validation) -> str:
    """Lay out what was found for a person: the file, its tensors, the warnings."""
    from lockstep.reference.checkpoint.errors import escape

    rows = [(key, text) for key, text in summary(found) if text]
    head = f"{escape(str(found.dump.path))}: valid, a {found.kind}"
    lines = [f"warning: {line}" for line in found.warnings] or ["no warnings"]
    parts = [f"{head}\n{table(rows)}", tensors(found.tensors), "\n".join(lines)]
    return printable("\n\n".join(part for part in parts if part))


def summary(found: Validation) -> list[tuple[str, str]]:
    """Return what is known of the whole, a row each; an empty text is no row."""
    from lockstep.reference.checkpoint.errors import show

    dump, said = found.dump, found.dump.about
    kinds = ", ".join(f"{count} {tag}" for tag, count in found.dtypes.items())
    bytes_ = sum(one.nbytes for one in found.tensors)
    known = sum(one.tap is not None for one in found.tensors)
    last = found.steps[-1] if found.steps else 0
    positions = dump.ids("positions") if dump.batch is None and dump.is_trace else None
    return [
        ("prompt", show(said["prompt"]) if "prompt" in said else ""),
        ("tensors", f"{len(found.tensors)}: {kinds}; {bytes_:,} bytes" if kinds else "none"),
        ("names", f"{known} of {len(found.tensors)} mean a tap of some model" if kinds else ""),
        ("tokens", ids(dump.tokens)),
        ("positions", ids(positions)),
        ("decoded", ids(dump.decoded)),
        ("generated", ids(found.generated)),
        ("sampling", show(said["sampling"]) if "sampling" in said else ""),
        ("steps", steps(last) if kinds else ""),
        *((key, show(said[key])) for key in ("dtype", "model", "backend") if said.get(key)),
    ]


def steps(last: int) -> str:
    return f"the prompt and {counted(last, 'step')}" if last else "the prompt alone"


def ids(some: list[int] | None) -> str:
    """Show the first token ids, and how many there are."""
    if not some:
        return ""
    more = ", ..." if len(some) > IDS else ""
    return f"{len(some)}: {', '.join(map(str, some[:IDS]))}{more}"


def tensors(found: list[Found]) -> str:
    """List the tensors, with what is odd about their numbers."""
    if not found:
        return ""
    from lockstep.reference.checkpoint.errors import clip_end, escape

    rows = [("tensor", "tap", "dtype", "shape", "numbers")]
    for one in found[:NAMES]:
        name = clip_end(escape(one.name), WIDTH)
        tap = "same" if one.tap == one.name else one.tap or "-"
        shape = "x".join(map(str, one.shape)) or "scalar"
        rows.append((name, tap, one.dtype, shape, odd(one)))
    more = [f"... and {len(found) - NAMES} more; --json has them all"]
    return "\n".join([table(rows), *more * (len(found) > NAMES)])


def odd(one: Found) -> str:
    """Say what is odd about the numbers of a tensor."""
    if not one.size:
        return "none"
    kinds = (("NaN", one.nan), ("infinite", one.infinite), ("zero", one.zeros))
    told = [f"{'all' if count == one.size else count} {kind}" for kind, count in kinds if count]
    return ", ".join(told)
