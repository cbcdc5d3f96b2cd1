"""Starting the ranks of one machine, and ending all of them when one of them ends too early.

Each rank is a process that runs the same command. It learns from its environment which rank it is
and where the others listen, as under `mlx.launch`: MLX_RANK, and MLX_HOSTFILE with an address and
a port of each. Rank 0 speaks for all; what the others say is kept, and told if they fail.
"""

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lockstep.fast.parallel.lost import LEFT_ALONE, STARTER, TAKEN

GRACE = 1.0  # seconds that ranks have to end by themselves, when they are told to
TRIES = 3  # how often ports are looked for, if other programs take them meanwhile
LOOK = 0.05
ORDER = {TAKEN: 0, LEFT_ALONE: 2}  # whom to blame before others, and behind; else 1


@dataclass
class Rank:
    """One started process, and the file that holds what it says besides its result."""

    number: int
    process: subprocess.Popen
    said: IO[bytes]

    def last_line(self) -> str:
        """Return the last line that it wrote on standard error, "" if none."""
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


@dataclass(frozen=True)
class Ended:
    """How the ranks ended: the exit code of the first that failed, below 0 for a signal, or 0."""

    code: int
    rank: int = 0
    said: str = ""


def launch(command: Sequence[str], ranks: int) -> Ended:
    """Run `command` as so many ranks on this machine, and wait for all of them.

    When one fails, the others are ended. So they are when this process is told to end. Where a
    port is taken before its rank listens, all begin again with others.
    """
    for _ in range(TRIES - 1):
        ended = launch_once(command, ranks)
        if ended.code != TAKEN:
            return ended
    return launch_once(command, ranks)


def launch_once(command: Sequence[str], ranks: int) -> Ended:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-ranks-")))
        hosts = folder / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(ranks)]))
        started: list[Rank] = []
        stack.callback(end, started)
        for number in range(ranks):
            said = stack.enter_context((folder / f"{number}.txt").open("w+b"))
            started.append(Rank(number, start(command, number, hosts, said), said))
        return watched(started)


def start(command: Sequence[str], number: int, hosts: Path, said: IO[bytes]) -> subprocess.Popen:
    """Start one rank. Only rank 0 has this process's standard output and standard error."""
    given = {"MLX_RANK": str(number), "MLX_HOSTFILE": str(hosts), STARTER: str(os.getpid())}
    return subprocess.Popen(
        command,
        env=os.environ | given,
        stdin=subprocess.DEVNULL,
        stdout=None if number == 0 else subprocess.DEVNULL,
        stderr=None if number == 0 else said,
        start_new_session=True,  # an interrupt is for this process, which ends the ranks
    )


def watched(ranks: list[Rank]) -> Ended:
    """Wait until all have ended well or one has not; say which and how."""
    while True:
        codes = [rank.process.poll() for rank in ranks]
        if any(code not in (None, 0) for code in codes):
            return blamed(ranks)
        if None not in codes:
            return Ended(0)
        time.sleep(LOOK)


def blamed(ranks: list[Rank]) -> Ended:
    """Find who failed first: not a rank that was left alone, if another one has failed by itself.

    All have a moment to end: ranks that refuse the same input do so within it, rank 0 aloud. A
    port that was taken comes before all else: the others met whoever has it. Nobody failed where
    rank 0 was done and left the others alone, as when its reader has enough.
    """
    patience = time.monotonic() + 10 * LOOK
    while time.monotonic() < patience and any(rank.process.poll() is None for rank in ranks):
        time.sleep(LOOK)
    failed = [rank for rank in ranks if rank.process.poll() not in (None, 0)]
    cause = min(failed, key=lambda rank: ORDER.get(rank.process.returncode, 1))
    if ranks[0].process.returncode == 0 and cause.process.returncode == LEFT_ALONE:
        return Ended(0)
    return Ended(cause.process.returncode, cause.number, cause.last_line())


def end(ranks: list[Rank]) -> None:
    """Tell those that still run to end, and make them."""
    alive = [rank.process for rank in ranks if rank.process.poll() is None]
    for process in alive:
        with suppress(ProcessLookupError):
            process.terminate()
    deadline = time.monotonic() + GRACE
    for process in alive:
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on: all are held until all are known.

    From then on until a rank listens, another program may take one.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
