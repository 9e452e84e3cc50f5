"""Two hosts on this machine, joined by a link of a known rate: what a benchmark over a network crosses.

    python benchmarks/two_hosts.py RATE COMMAND...      e.g. 1gbit python train.py

Runs the command on both hosts at once, as root.  It finds RANK (0 or 1) and COORDINATOR in its
environment, for `jax.distributed.initialize(COORDINATOR, 2, RANK)`; JAX's CPU collectives go over the
link with `jax.config.update("jax_cpu_collectives_implementation", "gloo")`.

A host is a network namespace with a name of its own, the link a veth pair with a token bucket at
each end.  Both end with the program, however it ends but by SIGKILL.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DEVICE = "uzip"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
COORDINATOR = f"{ADDRESSES[0]}:12345"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class Host(NamedTuple):
    name: str
    rank: int

    def start(self, command: list[str], **popen) -> subprocess.Popen:
        """Starts a command on the host; its name resolves to its address, which is where Gloo listens."""
        program = [sys.executable, str(Path(__file__).resolve()), "--on", self.name, *command]
        ranked = {"RANK": str(self.rank), "COORDINATOR": COORDINATOR}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "--uts", *program],
            env={**os.environ, **popen.pop("env", {}), **ranked},
            **popen,
        )


@contextlib.contextmanager
def two_hosts(rate: str) -> Iterator[tuple[Host, Host]]:
    """Two hosts, until the `with` block ends; SIGTERM ends it too."""
    check_possible()
    hosts = tuple(Host(f"uzip-{os.getpid()}-{rank}", rank) for rank in (0, 1))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        for host in hosts:
            call("ip", "netns", "add", host.name)
            files = etc(host)
            files.mkdir(parents=True)
            lines = "\n".join(f"{ADDRESSES[h.rank]} {h.name}" for h in hosts)
            (files / "hosts").write_text(f"127.0.0.1 localhost\n{lines}\n")
        ends = [["netns", host.name] for host in hosts]
        peer = ("type", "veth", "peer", "name", DEVICE, *ends[1])
        call("ip", "link", "add", "name", DEVICE, *ends[0], *peer)
        for host in hosts:
            on = ("ip", "-n", host.name)
            call(*on, "addr", "add", f"{ADDRESSES[host.rank]}/24", "dev", DEVICE)
            call(*on, "link", "set", DEVICE, "up")
            call(*on, "link", "set", "lo", "up")
            call("ip", "netns", "exec", host.name, *shaping(rate))
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(
                ["ip", "netns", "del", host.name], stderr=subprocess.DEVNULL, check=False
            )
            shutil.rmtree(etc(host), ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def check_possible() -> None:
    missing = [tool for tool in ("ip", "tc", "unshare") if not shutil.which(tool)]
    if missing:
        sys.exit(f"needs {', '.join(missing)} (Debian: apt-get install iproute2 util-linux)")
    if os.geteuid():
        sys.exit("needs root, to make network namespaces")


def etc(host: Host) -> Path:
    """Files that `ip netns exec` shows the host's processes in place of those in /etc."""
    return Path("/etc/netns") / host.name


def shaping(rate: str) -> list[str]:
    """The command that gives what a host sends a rate: on the host, at any time."""
    # A burst passes at any rate: two milliseconds of it, but room for some packets.
    burst = max(int(bits_per_second(rate) / 8 * 2e-3), 16 << 10)
    limits = f"rate {rate} burst {burst} latency 100ms"
    return f"tc qdisc replace dev {DEVICE} root tbf {limits}".split()


def set_rate(rate: str) -> None:
    """From a process on a host: the rate at which it sends from now on."""
    call(*shaping(rate))


def sent_bytes() -> int:
    """From a process on a host: what it has sent over the link so far."""
    (fields,) = re.findall(rf"^\s*{DEVICE}:(.*)$", Path("/proc/net/dev").read_text(), re.M)
    return int(fields.split()[8])


def bits_per_second(rate: str) -> float:
    parts = re.fullmatch(r"([\d.]+)(kbit|mbit|gbit)", rate)
    if not parts:
        raise ValueError(f"a rate is a number and one of {', '.join(UNITS)}, as in 200mbit: {rate}")
    return float(parts[1]) * UNITS[parts[2]]


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def wait_for_all(processes: list[subprocess.Popen]) -> int:
    """The first exit code that is not 0; one that fails takes the others with it."""
    try:
        waiting = list(processes)
        while waiting:
            for process in list(waiting):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    if process.wait(timeout=0.1):
                        return process.returncode
                    waiting.remove(process)
        return 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> int:
    if sys.argv[1:2] == ["--on"]:  # on the host: takes its name, and becomes the command
        name, *command = sys.argv[2:]
        socket.sethostname(name)
        os.execvp(command[0], command)
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    rate, *command = sys.argv[1:]
    with two_hosts(rate) as hosts:
        return wait_for_all([host.start(command) for host in hosts])


if __name__ == "__main__":
    sys.exit(main())
