"""Malformed GGUF files without end: `python -m tests.fuzz.fuzz_gguf COUNT SEED`.

Each seed makes one file: a sound model with a few things broken. It must be refused in one clean
line, or be read and then obey every rule: spans that cover the data, sizes that fit the types, the
bytes that stand in the file.
"""

import random
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path

from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.gguf.file import GgufFile
from lockstep.reference.checkpoint.gguf.metadata import Array
from tests import gguf_bytes as g
from tests.fuzz.running import Report, command, tally

NUMBERS = (0, 1, 2, 3, 7, 31, 32, 64, 255, 256, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def sound(rng: random.Random) -> bytes:
    """Return a sound model of zeros with a tokenizer."""
    tokens = [chr(97 + i) for i in range(10)]
    extra = [
        g.pair("tokenizer.ggml.model", g.STRING, "gpt2"),
        g.array("tokenizer.ggml.tokens", g.STRING, tokens),
        g.array("tokenizer.ggml.token_type", g.I32, [1] * 10),
        g.array("flags", g.BOOL, [0, 1, 1]),
        g.pair("general.alignment", g.U32, 32),
    ]
    rng.shuffle(extra)
    return g.model(extra=extra[: rng.randrange(len(extra) + 1)])


def broken(rng: random.Random, data: bytes) -> bytes:
    """Break one thing, more often in the header than in the data."""
    edge = data.find(b"output_norm.weight") + 64
    place = rng.randrange(edge if rng.random() < 0.95 else len(data))
    kind = rng.randrange(8)
    if kind == 0:
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if kind == 1:
        return data[:place] + struct.pack("<Q", rng.choice(NUMBERS)) + data[place + 8 :]
    if kind == 2:
        return data[:place] + struct.pack("<I", rng.choice(NUMBERS) % 2**32) + data[place + 4 :]
    if kind == 3:
        return data[:place] + data[place + rng.randrange(1, 33) :]
    if kind == 4:
        return data[:place] + rng.randbytes(rng.randrange(1, 33)) + data[place:]
    if kind == 5:
        return (
            data[: rng.randrange(len(data))]
            if rng.random() < 0.5
            else data + bytes(rng.randrange(99))
        )
    if kind == 6:
        other = rng.randrange(edge)
        return data[:place] + data[other : other + 40] + data[place + 40 :]
    # A bit somewhere keeps most of the structure.
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def make_case(seed: int) -> bytes:
    rng = random.Random(seed)
    data = sound(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
        data = broken(rng, data)
    return data


def run_case(data: bytes, path: Path) -> str:
    """Judge one file and return its class. Raises AssertionError if the reader got it wrong."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    try:
        file = GgufFile(path)
    except InputError as error:
        check_line(error)
        return "refused: the container"
    check_container(data, file)
    try:
        checkpoint = open_checkpoint(path)
    except InputError as error:
        check_line(error)
        return "refused: the model"
    for name in checkpoint.names:
        require(checkpoint.tensor(name).shape == checkpoint.stored(name).shape, f"shape of {name}")
    return "accepted"


def check_container(data: bytes, file: GgufFile) -> None:
    """Check the rules with arithmetic of its own, and the bytes against those of the file."""
    reached = None
    for name, entry in file.entries.items():
        weights, size = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2)}.get(entry.dtype) or BLOCKS[
            entry.dtype
        ]
        count = 1
        for one in entry.shape:
            require(one > 0, "an empty axis")
            count *= one
        require(entry.shape[-1] % weights == 0, f"a row of {name} ends within a block")
        require(entry.stop - entry.start == count // weights * size, f"size of {name}")
        require(reached is None or reached <= entry.start < reached + (1 << 16), f"start of {name}")
        require(0 < entry.start <= entry.stop <= len(data), f"{name} is outside the file")
        tensor = file.read(name)
        octets = tensor.blocks if isinstance(tensor, BlockTensor) else tensor
        require(octets.tobytes() == data[entry.start : entry.stop], f"bytes of {name}")
        reached = entry.stop
    require(reached is not None and len(data) - reached < 1 << 16, "bytes after the last tensor")
    for key, value in file.metadata.items():
        if isinstance(value, Array):
            try:
                found = file.array(key)
            except InputError as error:
                check_line(error)
            else:
                require(len(found) == value.count, f"length of {key}")


BLOCKS = {
    **{"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34)},
    **{"IQ4_NL": (32, 18), "MXFP4": (32, 17), "Q2_K": (256, 84), "Q3_K": (256, 110)},
    **{"Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)},
}


def check_line(error: InputError) -> None:
    line = str(error)
    require(line.isprintable() and len(line.encode()) <= 400, f"unclean line {line!r}")


def require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def fuzz(count: int, seed: int, report: Report) -> Counter[str]:
    """Run `count` cases and return how many fell into each class. Failures go to `report`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        numbers = range(seed, seed + count)
        return tally(numbers, lambda number: run_case(make_case(number), path), report)


if __name__ == "__main__":
    sys.exit(command("Fuzz the GGUF reader.", "file", fuzz))
