"""Files that a command is about to write: refused before anything runs, if they would do harm."""

from argparse import Namespace
from pathlib import Path

from lockstep.reference.checkpoint.errors import InputError, escape

INPUTS = ("model", "left", "right", "dump", "uniforms", "adapter")


def check_targets(options: Namespace) -> None:
    """Look at what --json, --out, --suspects and --resume name.

    Raises: InputError if one is a folder, lies in none, in the model's own, or is an input.
    """
    given = (getattr(options, name, None) for name in INPUTS)
    inputs = [Path(one) for name in given if name for one in of_ranks(options, name)]
    out_file = getattr(options, "out_file", None)
    written = [] if out_file is None else of_ranks(options, out_file)
    targets = [name for name in (options.json, *written) if name is not None]
    for target in targets:
        if target == "":
            raise InputError("''", "is no name of a file to write")
        if target != "-":
            check_target(Path(target), inputs)
    if options.json and any(Path(one).resolve() == Path(targets[0]).resolve() for one in written):
        raise InputError(targets[0], "is to hold both the trace and the JSON; name two files")
    if getattr(options, "suspects", None) is not None:
        check_suspects(options, inputs)
    if isinstance(journal := getattr(options, "resume", None), str):
        check_journal(journal, options.json, inputs)
    elif journal is not None:
        check_kept(options)


def check_suspects(options: Namespace, inputs: list[Path]) -> None:
    """Raise InputError unless --suspects names a new file, or one that it wrote before."""
    from lockstep.parity.cli.sketched import BEGINS

    if options.suspects in ("", "-"):
        raise InputError("--suspects", f"'{options.suspects}' is no name of a file to write")
    target = Path(options.suspects)
    check_target(target, inputs)
    others = [one for one in (options.json, options.resume) if one not in (None, "", "-")]
    if any(target.resolve() == Path(one).resolve() for one in others):
        raise InputError(target, "is to hold the suspects and something else; name two files")
    if target.is_file() and target.stat().st_size:
        with target.open("rb") as file:
            known = file.read(len(BEGINS)) == BEGINS.encode()
        if not known:
            raise InputError(target, "exists and is no list of suspects; it is left as it is")


def check_journal(journal: str, json: str | None, inputs: list[Path]) -> None:
    """Raise InputError unless --resume names a new file, or one that may be a journal.

    A journal is deleted when the command has ended well: what is of others must be none.
    """
    if journal in ("", "-"):
        raise InputError("--resume", f"'{journal}' is no name of a file to write")
    target = Path(journal)
    check_target(target, inputs)
    if target.exists() and (not target.is_file() or target.stat().st_size == 0):
        raise InputError(target, "exists and is no journal; delete it, or name another file")
    if json not in (None, "-") and Path(json).resolve() == target.resolve():
        raise InputError(journal, "is to hold both the JSON and what is kept; name two files")


def check_kept(options: Namespace) -> None:
    """Raise InputError if --json would be written over what an interrupted trace has left."""
    if options.json in (None, "-"):
        return
    trace, target = Path(options.out_file), Path(options.json)
    for end in ("", ".journal", ".stream0", ".stream1"):
        if target.resolve() == trace.with_name(f"{trace.name}.part{end}").resolve():
            what = f"is where --resume keeps what is written of {escape(trace.name)}"
            raise InputError(target, f"{what}; write elsewhere")


def of_ranks(options: Namespace, name: str) -> list[str]:
    """Return the names of all files that a name with {rank} in it means; else the one."""
    count = max(getattr(options, "ranks", 1), getattr(options, "tensor_parallel", 1))
    if count == 1 or "{rank}" not in name:
        return [name]
    return [name.replace("{rank}", str(rank)) for rank in range(count)]


def check_target(target: Path, inputs: list[Path]) -> None:
    try:
        if target.is_dir():
            raise InputError(target, "is a folder, but should be a file to write")
        if not target.parent.is_dir():
            raise InputError(target, "cannot be written: its folder does not exist")
        refuse_open_file(target)
        for source in inputs:
            refuse_harm(target, source)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(target, f"cannot be written: {error}") from None


def refuse_open_file(target: Path) -> None:
    """Raise InputError for /dev/stdout and its like, where they lead to a file.

    A whole file is put in place of its target: here that would be the machine's own link.
    """
    home = target.parent.resolve().parts[1:2]
    if home in (("dev",), ("proc",)) and target.is_symlink() and target.is_file():
        raise InputError(target, "is a link of the system to an open file; name that file")


def refuse_harm(target: Path, source: Path) -> None:
    """Raise InputError if writing the target would change what is read from the source."""
    if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise InputError(target, f"lies in the folder that is read, {source}; write elsewhere")
    if target.exists() and source.exists() and target.samefile(source):
        raise InputError(target, "is also read by this command; write elsewhere")


def check_trace_target(target: Path) -> None:
    """Raise InputError if a trace would replace a file that is no trace."""
    from lockstep.parity.dumps.dump import open_safetensors
    from lockstep.parity.sketches.sides import is_sketched

    if not target.exists():
        return
    if not target.is_file():
        raise InputError(target, "is not a file, so no trace can be written there")
    try:
        known = target.stat().st_size == 0 or is_sketched(target)
        known = known or open_safetensors(target).is_trace
    except InputError:
        known = False
    if not known:
        raise InputError(target, "exists and is no trace; it is left as it is")
