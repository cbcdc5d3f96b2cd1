"""Throw malformed safetensors at the reader: `python -m tests.fuzz.fuzz_safetensors COUNT SEED`.

The oracle is not "it did not crash" but: either an InputError with one clean line, or every rule of
the format holds and the safetensors package reads the same names, types, shapes and bytes. What the
package accepts and we refuse must fall in a class of STRICTER. Any other outcome is printed with
the seed that makes it again.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import safetensors

from lockstep.reference.checkpoint.dtypes import DTYPES, item_size
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from tests.fuzz.running import Report, command, tally

# Files that the package accepts and we do not, by our message.
STRICTER = (
    "duplicate",
    "header must start with",
    "unknown field",
    "bad header padding",
    "tensor name is empty",
    "__metadata__ must map string to string",
    "unsupported dtype 'F4'",
    "unsupported dtype 'F6_",
    "rank",
    "over 2\\*\\*63 bytes",
    "is over the limit of",
    "too complex",
    "longer than",
)
ALLOWED = re.compile("|".join(STRICTER))
TAGS = (*DTYPES, "F4", "F6_E2M3", "UI32", "f32", "")
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 64, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1)
ODD = (None, True, 2.0, "1", [], {}, [1], "", 1e300, -0.0)
TOKENS = (b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"NaN", b"-0", b"1e999", b"\\ud800")
NAMES = ("a", "a.weight", "b", "\u00e9", "e\u0301", "x\ny", "__metadata__", "dtype", "")


def seed_header(rng: random.Random) -> tuple[dict, int]:
    """Return a sound header and the number of data bytes that it describes."""
    header: dict = {"__metadata__": {"format": "np"}} if rng.random() < 0.5 else {}
    end = 0
    for index in range(rng.randrange(5)):
        tag = rng.choice(list(DTYPES))
        shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
        size = item_size(tag)
        for n in shape:
            size *= n
        entry = {"dtype": tag, "shape": shape, "data_offsets": [end, end + size]}
        header[f"t{index}"] = entry
        end += size
    return header, end


def change_entry(rng: random.Random, header: dict) -> None:
    """Break one field of one tensor, or the set of tensors."""
    names = [name for name, entry in header.items() if is_entry(entry)]
    if not names:
        header[rng.choice(NAMES)] = rng.choice(ODD)
        return
    entry = header[rng.choice(names)] = copy.deepcopy(header[rng.choice(names)])
    kind = rng.randrange(8)
    if kind == 0:
        entry["dtype"] = rng.choice((*TAGS, *ODD))
    elif kind == 1:
        entry["shape"] = [rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 2, 3, 65)))]
    elif kind == 2:
        entry["shape"].append(rng.choice((*NUMBERS, *ODD)))
    elif kind == 3:
        entry["data_offsets"][rng.randrange(2)] += rng.choice((-1, 1, -4, 4, 2**32, 2**64))
    elif kind == 4:
        entry["data_offsets"] = rng.choice((*ODD, [0], [0, 0, 0], [1, 0], [0, 2**64 - 1]))
    elif kind == 5:
        del entry[rng.choice(list(entry))]
    elif kind == 6:
        entry[rng.choice(("extra", "Shape"))] = rng.choice(ODD)
    else:
        header[rng.choice(NAMES)] = rng.choice((entry, *ODD))


def is_entry(value: object) -> bool:
    """Tell whether a value still has the form that `change_entry` knows how to break."""
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        return False
    offsets = value["data_offsets"]
    sound = isinstance(offsets, list) and len(offsets) == 2 and isinstance(value["shape"], list)
    return sound and all(type(n) is int for n in offsets)


def change_text(rng: random.Random, text: bytes) -> bytes:
    """Break the JSON itself."""
    place = rng.randrange(len(text) + 1)
    kind = rng.randrange(6)
    if kind == 0:
        return text[:place] + rng.choice(TOKENS) + text[place:]
    if kind == 1:
        return text[:place] + text[place + rng.randrange(1, 4) :]
    if kind == 2:
        return text[:place] + bytes([rng.randrange(256)]) + text[place + 1 :]
    if kind == 3:
        return text + rng.choice((b" ", b"\n", b"\0", b"\t ", b"{}", b"   "))
    if kind == 4:
        other = rng.randrange(len(text) + 1)
        return text[:place] + text[min(place, other) : max(place, other)] + text[place:]
    return rng.choice((b"\xef\xbb\xbf", b" ", b"\n")) + text


def make_case(seed: int) -> bytes:
    """Return the malformed file of a seed. About one in ten comes out sound."""
    rng = random.Random(seed)
    header, size = seed_header(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        change_entry(rng, header)
    text = json.dumps(header, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
    for _ in range(rng.choice((0, 0, 1, 2))):
        text = change_text(rng, text)
    length = len(text) + rng.choice((0,) * 12 + (1, -1, 2**32, 2**63))
    data = rng.randbytes(max(0, size + rng.choice((0,) * 12 + (1, -1, 100))))
    return (length % 2**64).to_bytes(8, "little") + text + data


def run_case(data: bytes, path: Path) -> str:
    """Judge one file and return its class. Raises AssertionError if the reader got it wrong."""
    # A new file each time: some file systems sync a file that is truncated and written again.
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    theirs = read_with_package(data)
    try:
        file = SafetensorsFile(path)
        arrays = {name: file.read(name) for name in file.entries if not bad_bool(data, file, name)}
    except InputError as error:
        require(clean_line(str(error)), f"unclean line {str(error)!r}")
        known = theirs is None or ALLOWED.search(str(error))
        require(bool(known), f"refused, but the package reads it: {error}")
        return "refused" if theirs is None else "refused, the package accepts"
    check_invariants(data, file)
    if theirs is None:
        raise AssertionError("accepted, but the package refuses it")
    require(file.entries.keys() == theirs.keys(), "other names than the package")
    for name, array in arrays.items():
        entry, (tag, shape, content) = file.entries[name], theirs[name]
        require((entry.dtype, list(entry.shape)) == (tag, shape), f"other type or shape of {name}")
        require(array.shape == entry.shape and array.tobytes() == content, f"other bytes of {name}")
    return "accepted"


def read_with_package(data: bytes) -> dict | None:
    """Return name -> (tag, shape, bytes) as the safetensors package has it, None if it refuses."""
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {name: (e["dtype"], e["shape"], bytes(e["data"])) for name, e in entries}


def bad_bool(data: bytes, file: SafetensorsFile, name: str) -> bool:
    """Random bytes are no booleans: the package passes them on, we refuse to."""
    entry = file.entries[name]
    return entry.dtype == "BOOL" and any(b > 1 for b in data[entry.start : entry.stop])


def check_invariants(data: bytes, file: SafetensorsFile) -> None:
    """Check the rules of the format with arithmetic that shares nothing with the reader."""
    covered = bytearray(len(data))
    start = 8 + int.from_bytes(data[:8], "little")
    for entry in file.entries.values():
        size = item_size(entry.dtype)
        for n in entry.shape:
            require(n >= 0, "negative size")
            size *= n
        require(start <= entry.start <= entry.stop <= len(data), "span outside the data")
        require(entry.stop - entry.start == size, "span of another size than the shape")
        for place in range(entry.start, entry.stop):
            require(not covered[place], "spans overlap")
            covered[place] = 1
    require(all(covered[start:]), "a byte belongs to no tensor")


def clean_line(text: str) -> bool:
    return text.isprintable() and len(text.encode()) <= 400


def require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def fuzz(count: int, seed: int, report: Report) -> Counter[str]:
    """Run `count` cases and return how many fell into each class. Failures go to `report`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        numbers = range(seed, seed + count)
        return tally(numbers, lambda number: run_case(make_case(number), path), report)


if __name__ == "__main__":
    sys.exit(command("Fuzz the reader.", "file", fuzz))
