"""Two hosts: network namespaces of this machine, joined by a cable that tests can cut.

They take root and iproute2, and nothing of the kernel but namespaces and veth devices.  Processes in them see the same
files, and none of this machine's network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.distributed.crew import die_with_parent

DEVICE = "cable"
_NOBODY = "02:00:00:00:00:99"  # a link-layer address that no device has
_PATIENCE = 20.0  # seconds for a command of iproute2, which takes none


@dataclass(frozen=True)
class Host:
    """A namespace with one end of the cable."""

    name: str
    address: str

    def run(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a process there, which ends with this one."""
        there = ["ip", "netns", "exec", self.name, *command]
        return subprocess.Popen(there, text=True, preexec_fn=die_with_parent, **options)


@dataclass(frozen=True)
class Hosts:
    """Both of them."""

    pair: tuple[Host, Host]

    def unplug(self) -> None:
        """Takes the cable off the first host: both see that they have no link."""
        _ip("-n", self.pair[0].name, "link", "set", DEVICE, "down")

    def lose_packets(self) -> None:
        """From now on nothing arrives, and neither host can tell: each sends to where nobody is."""
        for here, there in (self.pair, self.pair[::-1]):
            entry = [there.address, "lladdr", _NOBODY, "nud", "permanent", "dev", DEVICE]
            _ip("-n", here.name, "neigh", "replace", *entry)


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Makes them, and takes them away with every process that is left in them."""
    pair = tuple(Host(f"lifted-{os.getpid()}-{n}", f"192.0.2.{n}") for n in (1, 2))
    try:
        for host in pair:
            _ip("netns", "add", host.name)
        ends = [["name", DEVICE, "netns", host.name] for host in pair]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for host in pair:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _ip("-n", host.name, "link", "set", device, "up")
        yield Hosts((pair[0], pair[1]))
    finally:
        for host in pair:
            with suppress(subprocess.SubprocessError):
                for pid in _ip("netns", "pids", host.name).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
            with suppress(subprocess.SubprocessError):
                _ip("netns", "delete", host.name)


@cache
def hindrance() -> str | None:
    """Why there can be no hosts here, None where there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None:
        return "network namespaces take the command ip of iproute2"
    try:
        with two_hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"this machine has no network namespaces: {error.stderr.strip()}"


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=_PATIENCE, check=True)
    return done.stdout
