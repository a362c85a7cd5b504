"""Two hosts on one machine with a slow, lossy link: network namespaces, and a relay that delays and drops packets.

Each namespace has a TUN device whose packets come to this process. Needs root, iproute2's `ip` and /dev/net/tun, but
not the kernel's netem, which is not available everywhere.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

# linux/if_tun.h, linux/sched.h
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
DEVICE = "paceline0"
MOST_PACKET_BYTES = 65536


class SlowNetwork:
    """Two namespaces, `near` and `far`, and the link between them."""

    def __init__(self) -> None:
        """Raises OSError if the machine does not allow it."""
        if os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists():
            raise OSError("network namespaces with a relay need root, iproute2 and /dev/net/tun")
        self.delay_s = 0.0
        self.loss = 0.0
        self.num_passed = 0
        self.num_lost = 0
        self._random = random.Random(0)
        self._names = {side: f"paceline-{side}-{os.getpid()}" for side in ("near", "far")}
        self.addresses = {"near": "10.77.0.1", "far": "10.77.0.2"}
        self._devices: dict[str, int] = {}

    def command(self, side: str) -> list[str]:
        """Returns a prefix that runs a command on that host."""
        return ["ip", "netns", "exec", self._names[side]]

    @contextlib.contextmanager
    def up(self) -> Iterator["SlowNetwork"]:
        """Runs both hosts on the running event loop."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for side, name in self._names.items():
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "del", name)
                self._devices[side] = device = _open_tun_in(name)
                stack.callback(os.close, device)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "address", "add", f"{self.addresses[side]}/24", "dev", DEVICE)
                _ip("-n", name, "link", "set", DEVICE, "up")
            for side, device in self._devices.items():
                other = self._devices["far" if side == "near" else "near"]
                loop.add_reader(device, self._relay, device, other)
                stack.callback(loop.remove_reader, device)
            yield self

    def _relay(self, device: int, other: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(device, MOST_PACKET_BYTES)
                if self._random.random() < self.loss:
                    self.num_lost += 1
                    continue
                self.num_passed += 1
                asyncio.get_running_loop().call_later(self.delay_s, _write, other, packet)


def _write(device: int, packet: bytes) -> None:
    # A full device, or one that is gone, loses a packet, as networks do.
    with contextlib.suppress(OSError):
        os.write(device, packet)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _open_tun() -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _open_tun_in(name: str) -> int:
    """Runs in a thread, since a namespace belongs to a thread. The device stays when the thread has ended."""
    found: list[int] = []

    def run() -> None:
        with Path(f"/run/netns/{name}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                return
        found.append(_open_tun())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if not found:
        raise OSError(f"the network namespace {name} can't be entered")
    return found[0]
