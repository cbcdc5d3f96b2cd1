"""Ranks that `mlx.launch` starts from a host file, by the command of docs/parallel.md.

Truth: what one rank writes. Both hosts are 127.0.0.1, which the launcher reaches without ssh.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from lockstep.fast.parallel.lost import FAILED, LINE
from tests.parity.conftest import DEMO

ROOT = DEMO.parents[2]
LAUNCHER = str(Path(sys.executable).with_name("mlx.launch"))
GIVEN = os.environ | {"PYTHONPATH": str(ROOT)}
LOCKSTEP = (sys.executable, "-m", "lockstep.parity.cli")
MORE = ("--backend", "mlx", "--max-tokens", "12", "--ignore-eos")
# Rank 1 ends itself before it gives the scores of its third token.
DIES = """
import os, signal, sys
from lockstep.fast.parallel.group import Group
from lockstep.parity.cli import main
gather = Group.all_gather
def dying(self, part):
    if self.rank == 1 and self.traffic.gathers == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return gather(self, part)
Group.all_gather = dying
sys.exit(main(sys.argv[1:]))
"""
# The launcher ends the other ranks as soon as it sees one fail. It does not see that before both
# have ended by themselves: so these words run a rank, note its exit code, and stay until then.
UNSEEN = """
"$@"; echo $? > ended.$MLX_RANK
until [ -s ended.0 ] && [ -s ended.1 ]; do sleep 0.1; done
exit 1
"""


def words_of_the_page() -> list[str]:
    """Return the command that the page shows, as a shell reads it."""
    lines = (ROOT / "docs/parallel.md").read_text(encoding="utf-8").splitlines()
    return shlex.split(next(line for line in lines if line.startswith("mlx.launch ")))


def first_of_two_ports() -> int:
    """Return a port of the loopback that is free, and the next one too: the launcher takes both."""
    while True:
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            return port


def is_gone(group: int) -> bool:
    """Tell whether no process of a group is left, a minute later at the latest."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def launched(folder: Path, *lockstep: str) -> str:
    """Run the page's command with `lockstep` for its own; return what the ranks complained of.

    Nothing of it may be left: that is checked, and then ended.
    """
    (folder / "hosts.json").write_text(json.dumps(2 * [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}]))
    words = words_of_the_page()
    place = words.index("lockstep")
    rest = [str(DEMO) if word == "MODEL" else word for word in words[place + 1 :]]
    command = [LAUNCHER, "--starting-port", str(first_of_two_ports()), *words[1:place]]
    with (folder / "said").open("w+b") as said:
        process = subprocess.Popen(
            [*command, *lockstep, *rest, *MORE, "--json", "ranks.json"],
            stdin=subprocess.PIPE,  # open until it ends: an ended one would be read over and over
            stdout=said, stderr=said, cwd=folder, env=GIVEN, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(120)
            assert is_gone(process.pid), "processes are left"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()
    return (folder / "said").read_text()


def test_the_ranks_of_a_host_file_write_what_one_does(tmp_path):
    words = words_of_the_page()
    assert words[0] == "mlx.launch" and words[-2:] == ["--tensor-parallel", "2"]
    said = launched(tmp_path, *LOCKSTEP)
    two = json.loads((tmp_path / "ranks.json").read_text())
    alone = [str(DEMO) if word == "MODEL" else word for word in words[words.index("generate") : -2]]
    subprocess.run(
        [*LOCKSTEP, *alone, *MORE, "--json", "one.json"], cwd=tmp_path, env=GIVEN, check=True
    )
    one = json.loads((tmp_path / "one.json").read_text())
    assert (two["tokens"], two["text"]) == (one["tokens"], one["text"]), said
    assert len(one["tokens"]) == 12 and two["tensor_parallel"]["ranks"] == 2
    assert said.count(one["text"].strip()) == 1  # one rank speaks


def test_a_rank_that_is_killed_ends_the_other_with_a_line(tmp_path):
    rank = ["bash", "-c", UNSEEN, "bash", sys.executable, "-c", DIES]
    said = launched(tmp_path, *rank)
    assert LINE.decode() in said and "Traceback" not in said, said
    codes = [int((tmp_path / f"ended.{rank}").read_text()) for rank in range(2)]
    assert codes == [FAILED, 128 + signal.SIGKILL]
    assert not (tmp_path / "ranks.json").exists()
