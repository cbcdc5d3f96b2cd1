"""Two ranks on two hosts, as far as the kernel knows: a network namespace each, and a wire between.

The kernel counts what goes over the wire; the truth is the arithmetic of docs/parallel.md. Where a
machine has no such namespaces for this user, the hosts are two addresses of the loopback, whose
counters have everybody's bytes: then what the ranks count themselves is held against it alone.
"""

import json
import os
import shutil
import subprocess
import sys

from lockstep.fast.parallel.launch import free_ports
from tests.parity.conftest import DEMO

# The caller's namespace is host 10.7.0.1; that of a process which sleeps is 10.7.0.2.
WIRED = """
set -e
ip link set lo up
unshare -n sleep 300 &
other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link add here type veth peer name there
ip link set there netns $other
ip addr add 10.7.0.1/24 dev here
ip link set here up
inside="nsenter -t $other -n"
$inside ip addr add 10.7.0.2/24 dev there
$inside ip link set there up
"""
RUN = """
MLX_RANK=1 $inside "$@" > second.txt 2>&1 &
second=$!
MLX_RANK=0 "$@" --json out.json
wait $second
"""
COUNT = "grep here: /proc/net/dev > counted.txt\n"
HOSTS = {True: ["10.7.0.1", "10.7.0.2"], False: ["127.0.0.2", "127.0.0.3"]}
HEADER = 66  # bytes of Ethernet, IP and TCP with its time stamps
BESIDE = 2000  # at most: who has an address, and how ranks meet


def shell(script: str, *command: str, wired: bool, **told) -> subprocess.CompletedProcess:
    inside = ["unshare", "-rn"] if wired else []
    return subprocess.run(
        [*inside, "bash", "-c", script, "bash", *command], capture_output=True, text=True, **told
    )


def has_wire() -> bool:
    tools = all(map(shutil.which, ("unshare", "nsenter", "ip")))
    return tools and shell(WIRED, wired=True, timeout=30).returncode == 0


def test_two_hosts_send_what_the_arithmetic_says(tmp_path, capsys):
    wired = has_wire()
    if not wired:
        with capsys.disabled():
            print("\nno network namespaces here: two addresses of the loopback")
    check_two_hosts(tmp_path, wired=wired)


def test_two_addresses_of_the_loopback_are_two_hosts(tmp_path):
    check_two_hosts(tmp_path, wired=False)


def check_two_hosts(tmp_path, *, wired: bool):
    """By hand: 4 layers of 128, 704 words; 5 tokens of a prompt and 7 steps, in 8 passes."""
    hosts = tmp_path / "hosts.json"
    places = zip(HOSTS[wired], free_ports(2), strict=True)
    hosts.write_text(json.dumps([[f"{host}:{port}"] for host, port in places]))
    command = [sys.executable, "-m", "lockstep.parity.cli", "generate", str(DEMO), "--tokens",
               "3,1,4,1,5", "--ignore-eos", "--max-tokens", "8", "--backend", "mlx",
               "--tensor-parallel", "2"]  # fmt: skip
    script = WIRED + RUN + COUNT if wired else RUN
    given = os.environ | {"MLX_HOSTFILE": str(hosts), "PYTHONPATH": str(DEMO.parents[2])}
    ran = shell(script, *command, wired=wired, cwd=tmp_path, env=given, timeout=120)
    assert ran.returncode == 0, ran.stderr + (tmp_path / "second.txt").read_text()
    found = json.loads((tmp_path / "out.json").read_text())
    told = found["tensor_parallel"]
    payload = 9 * 128 * 4 * (5 + 7) + 352 * 4 * 8
    assert told["summed_bytes"] + told["gathered_bytes"] == payload and len(found["tokens"]) == 8
    if wired:
        sent, packets = map(int, (tmp_path / "counted.txt").read_text().split()[9:11])
        assert payload <= sent - HEADER * packets <= payload + BESIDE
