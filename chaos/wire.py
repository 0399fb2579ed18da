"""A wire with delay between machines that are network namespaces of this one: `with Wire() as wire`.

Each machine has a network of its own with one device, 10.77.0.N, and nothing else but its loopback: processes of two
machines reach each other by TCP alone, and find no Unix socket of each other. The devices are TUN devices whose packets
come to this program, which hands each to the machine that it is for when it is due. So it needs no module of the kernel
that delays packets, and no address of the network outside. Packets may be as large as the system makes them (64 KB), as
with a network card that cuts them itself; no speed is limited, and a packet is lost only where `set_links` says so.

`python -m buckram.chaos.wire SOCKET DELAY_US` carries packets; with `join SOCKET N -- COMMAND...` for arguments it
becomes a process of machine N. Root, or the right to make user namespaces, is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import random
import select
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from chaos.machines import DONE, NO_SHORTCUTS, READY, Link, Machines, NoNetwork, answer, links_in

REMOTE = {**NO_SHORTCUTS, "BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0"}
"""Environment of processes on different machines: none reads another machine's files, although they share a file system
here."""
DELAY_US = 500
"""Each way; a round trip takes twice that."""
NETWORK = "10.77.0."
DEVICE = b"wire0"
CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU, SIOCSIFFLAGS, SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8914, 0x8943
IFF_UP, IFF_RUNNING = 0x1, 0x40
HEADER = 10
"""Bytes of a packet's header with its segmentation and checksum offsets (struct virtio_net_hdr)."""
SOURCE, DESTINATION = HEADER + 12, HEADER + 16
PACKET = 65536 + HEADER
MTU = 1500
AT_ONCE = 64
"""Packets that are taken from one device before the others are looked at."""


def address(machine: int) -> str:
    return f"{NETWORK}{machine}"


class Wire(Machines):
    """The program that carries packets, as a child of this one. Each machine has a network namespace."""

    kind = "namespaces"

    def __init__(self, delay_us: int = DELAY_US) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="wire-"))
        self.control = self._folder / "control"
        if not self.start("buckram.chaos.wire", str(self.control), str(delay_us)):
            raise NoNetwork("the wire did not start; what it said is above")

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            self.control.unlink(missing_ok=True)
            self._folder.rmdir()

    def launcher(self, machine: int) -> list[str]:
        return [sys.executable, "-m", "buckram.chaos.wire", "join", str(self.control), str(machine), "--"]

    def environment(self, machine: int) -> Mapping[str, str]:
        return REMOTE

    def listens(self, machine: int) -> str:
        return address(machine)

    def reached(self, machine: int, *ports: int) -> str:
        return address(machine)


# -- a process that becomes one of another machine ---------------------------------------------------------------------


def join(control: str, machine: int) -> None:
    """Move this process and its later children into the network of this machine. Call it before there are threads."""
    _leave_network()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _configure(any_socket, b"lo", None)
        try:
            tun = os.open("/dev/net/tun", os.O_RDWR)
            flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
            fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE, flags))
            fcntl.ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
        except OSError as error:
            raise NoNetwork(f"no TUN device: {error}; run it as root where /dev/net/tun is") from error
        _configure(any_socket, DEVICE, address(machine))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(control)
        socket.send_fds(connection, [struct.pack(">I", machine)], [tun])
        if connection.recv(2) != b"ok":
            raise NoNetwork(f"the wire at {control} does not take machine {machine}")
    os.close(tun)


def _leave_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    kind = CLONE_NEWNET if user == 0 else CLONE_NEWUSER | CLONE_NEWNET
    if libc.unshare(kind) != 0:
        said = os.strerror(ctypes.get_errno())
        raise NoNetwork(f"no network namespace: {said}; run it as root, or allow user namespaces")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _configure(any_socket: socket.socket, device: bytes, ip: str | None) -> None:
    """Bring a device up, with an address where one is given."""
    if ip is not None:
        for what, value in ((SIOCSIFADDR, ip), (SIOCSIFNETMASK, "255.255.255.0")):
            fcntl.ioctl(any_socket, what, struct.pack("16sHH4s8x", device, socket.AF_INET, 0, socket.inet_aton(value)))
        fcntl.ioctl(any_socket, SIOCSIFMTU, struct.pack("16si20x", device, MTU))
        fcntl.ioctl(any_socket, SIOCSIFTXQLEN, struct.pack("16si20x", device, 10_000))
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", device, IFF_UP | IFF_RUNNING))


# -- the program that carries packets ----------------------------------------------------------------------------------


class Carrier:
    """Devices by machine, and packets on their way in the order in which they are due."""

    def __init__(self, control: socket.socket, delay_s: float) -> None:
        self._control, self._delay_s = control, delay_s
        self._devices: dict[bytes, int] = {}
        self._due: deque[tuple[float, int, bytes]] = deque()
        self._links: dict[bytes, Link] = {}
        """Faults by the addresses of source and target."""
        self._said = b""
        self._rng = random.Random(0)

    def run(self) -> None:
        """Carry packets until standard input ends. Each of its lines replaces the faults of the network."""
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            # Not poll(), whose clock ticks in whole milliseconds.
            readable, _, _ = select.select([0, self._control, *self._devices.values()], [], [], wait)
            if 0 in readable and not self._listen():
                return
            for ready in readable:
                if ready is self._control:
                    self._accept()
                elif (
                    isinstance(ready, int) and ready in self._devices.values()
                ):  # not one that another has just taken the place of
                    self._take(ready)
            self._deliver()

    def _listen(self) -> bool:
        """Read standard input and obey its whole lines; return False at its end."""
        more = os.read(0, 65536)
        *lines, self._said = (self._said + more).split(b"\n")
        for line in lines:
            self._links = {
                socket.inet_aton(address(source)) + socket.inet_aton(address(target)): link
                for (source, target), link in links_in(json.loads(line)).items()
            }
            answer(DONE)
        return bool(more)

    def _accept(self) -> None:
        connection, _ = self._control.accept()
        with connection:
            said, (device, *_), _, _ = socket.recv_fds(connection, 4, 1)
            os.set_blocking(device, False)
            where = socket.inet_aton(address(struct.unpack(">I", said)[0]))
            if (before := self._devices.get(where)) is not None:
                self._forget(before)
            self._devices[where] = device
            connection.sendall(b"ok")

    def _take(self, device: int) -> None:
        due = time.monotonic() + self._delay_s
        try:
            for _ in range(AT_ONCE):
                packet = os.read(device, PACKET)
                target = self._devices.get(packet[DESTINATION : DESTINATION + 4])
                if target is None:
                    continue
                if self._links and (link := self._links.get(packet[SOURCE : SOURCE + 8])) is not None:
                    if self._rng.random() >= link.loss:
                        self._delay(due + link.delay_us / 1e6, target, packet)
                    continue
                self._delay(due, target, packet)
        except BlockingIOError:
            pass
        except OSError:  # its last process has ended
            self._forget(device)

    def _delay(self, due: float, target: int, packet: bytes) -> None:
        """Keep the packets on their way in the order in which they are due."""
        at = len(self._due)
        while at > 0 and self._due[at - 1][0] > due:
            at -= 1
        self._due.insert(at, (due, target, packet))

    def _deliver(self) -> None:
        due, now = self._due, time.monotonic()
        while due and due[0][0] <= now:
            _, device, packet = due.popleft()
            # What a device does not take is lost, as in a network.
            with contextlib.suppress(OSError):
                os.write(device, packet)

    def _forget(self, device: int) -> None:
        self._devices = {where: other for where, other in self._devices.items() if other != device}
        self._due = deque(one for one in self._due if one[1] != device)
        os.close(device)


def main() -> None:
    if sys.argv[1] == "join":
        control, machine, mark, *command = sys.argv[2:]
        assert mark == "--", "python -m buckram.chaos.wire join SOCKET N -- COMMAND..."
        try:
            join(control, int(machine))
        except NoNetwork as error:
            raise SystemExit(f"machine {machine}: {error}") from error
        os.execvp(command[0], command)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(sys.argv[1])
        listening.listen(16)
        answer(READY)
        Carrier(listening, int(sys.argv[2]) / 1e6).run()


if __name__ == "__main__":
    main()
