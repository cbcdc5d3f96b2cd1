"""Where each rank's dump lies: a name with `{rank}` in it, or a folder with a file for each."""

from __future__ import annotations

import re
from pathlib import Path

from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.reference.checkpoint.errors import InputError, show

RANK = "{rank}"
OPTION = "--tensor-parallel"
ONE_NAME = f"is one name for all ranks: put {RANK} where the number of each stands"
OF_RANK = re.compile(r"(?:.*rank[-_]?)?([0-9]{1,4})", re.IGNORECASE)  # what a file's stem ends in
KINDS = (".safetensors", ".npz", "")  # a folder of .npy has no ending


def path_of(pattern: str, rank: int) -> Path:
    """Return where a rank's file lies, by a name that says where its number stands."""
    return Path(pattern.replace(RANK, str(rank)))


def check_one_name(name: str) -> None:
    """Raises: InputError if a name of one file says where the number of a rank stands."""
    if RANK in name:
        what = f"has {RANK} in its name, which goes with {OPTION} N, from 2 on"
        raise InputError(name, what, OPTION)


def check_whole(dump: Dump) -> Dump:
    """Return a dump of a whole model. Raises: InputError if it says that it is of one rank."""
    ranks = dump.about.get("ranks", "1")
    if ranks != "1":
        rank, count = (one if re.fullmatch("[0-9]{1,4}", one) else show(one, 20)
                       for one in (dump.about.get("rank", "?"), ranks))  # fmt: skip
        what = f"is rank {rank} of {count}: give all ranks' by {RANK} in the name, and {OPTION} "
        raise InputError(dump.path, f"{what}{count}", "__metadata__")
    return dump


def check_pattern(pattern: str) -> None:
    """Raises: InputError if a name does not say where the number of a rank stands."""
    if RANK not in pattern:
        raise InputError(pattern, ONE_NAME, OPTION)


def has_ranks(given: str) -> bool:
    """Tell whether a name means a dump of each rank, and not one of a whole model."""
    folder = Path(given)
    if RANK in given or not folder.is_dir():
        return RANK in given
    return not any(folder.glob("*.npy")) and bool(in_folder(folder))


def open_ranks(given: str, ranks: int) -> list[Dump]:
    """Open the dump of every rank, in their order.

    Raises: InputError if one has none, if there are more, or if one cannot be read.
    """
    if RANK in given:
        found = {rank: path_of(given, rank) for rank in range(ranks)}
        more = path_of(given, ranks)
        found |= {ranks: more} if more.exists() else {}
    elif Path(given).is_dir():
        found = in_folder(Path(given))
    elif not Path(given).exists():
        raise InputError(given, "no such file or folder", OPTION)
    else:
        raise InputError(given, ONE_NAME, OPTION)
    lacking = [rank for rank in range(ranks) if rank not in found or not found[rank].exists()]
    if lacking:
        names = f"{RANK} in its name stands for 0 to {ranks - 1}" if RANK in given else (
            f"its files are to be named rank0 to rank{ranks - 1}")  # fmt: skip
        raise InputError(given, f"has no dump of rank {lacking[0]}: {names}", OPTION)
    if len(found) > ranks:
        raise InputError(given, f"has a dump of rank {max(found)} too, of {ranks} ranks", OPTION)
    return [of_rank(open_dump(found[rank]), rank, ranks) for rank in range(ranks)]


def of_rank(dump: Dump, rank: int, ranks: int) -> Dump:
    """Return a dump that is of this rank. Raises: InputError if it says that it is of another."""
    for key, right in (("rank", rank), ("ranks", ranks)):
        said = dump.about.get(key, str(right))
        if said != str(right):
            what = f"says that its {key} is {show(said, 20)}, but should be {right}"
            raise InputError(dump.path, what, "__metadata__")
    return dump


def in_folder(folder: Path) -> dict[int, Path]:
    """Return the dumps in a folder by their rank: rank0.safetensors, run_rank-1.npz, 2/.

    Raises: InputError if two have one number.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        named = OF_RANK.fullmatch(path.stem) if path.suffix in KINDS else None
        if named is None or (path.suffix == "") != path.is_dir():
            continue
        other = found.setdefault(int(named[1]), path)
        if other != path:
            both = f"{show(other.name, 40)} and {show(path.name, 40)}"
            raise InputError(folder, f"two dumps are of rank {int(named[1])}: {both}")
    return found
