"""Machines that share one loopback, with relays between them: the network of faults where there are no namespaces.

Machine N's servers listen on 127.A.B.N with B odd, and are reached at 127.A.B+1.N, where a relay listens and forwards
data, late, or not at all. So a server has to advertise that address. The machine that connects is read from /proc: the
process that holds the other end of the connection has its machine's number in its environment. Linux only.

A link that loses everything holds what is sent on it, as the network of a partition does, and delivers it after its
end unless the connection was given up. One that loses a share delays as many pieces as a sender that repeats them
would, and now and then it resets the connection.

`python -m buckram.chaos.relay A B` carries data until standard input ends. Each line of it is JSON, answered by a line:
{"serve": [[machine, port], ...]} or {"links": [[source, target, loss, delay_us], ...]}.

Not here: the network of namespaces (`wire.py`), which loses packets and not pieces of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from chaos.machines import DONE, NO_SHORTCUTS, READY, Link, Links, Machines, NoNetwork, answer, links_in

MACHINE_VARIABLE = "CHAOS_MACHINE"
"""In the environment of each process: the block of addresses and the number of its machine, such as 17.4:10."""
CLAIM_PORT = 1025
"""Bound on 127.A.B.1 as long as the block is in use."""
PIECE = 64 << 10
WAITING = 64
"""Pieces of a connection that are on their way in one direction before no more are taken."""
REPEAT_S = 0.2
"""Delay of a lost piece in seconds, as a TCP retransmission would add."""
RESETS = 0.05
"""The share of lost pieces that end their connection instead."""
LISTEN_BACKLOG = 512


class Relays(Machines):
    """The program that relays, as a child of this one. One block of addresses for each, drawn until one is free."""

    kind = "relays"

    def __init__(self) -> None:
        super().__init__()
        if not Path("/proc/net/tcp").exists():
            raise NoNetwork("there is no /proc/net/tcp, which says who connects")
        rng = random.SystemRandom()
        for _ in range(100):
            self._block = (rng.randrange(1, 255), rng.randrange(1, 127) * 2 - 1)
            if self.start("buckram.chaos.relay", *map(str, self._block)):
                return
        raise NoNetwork("no block of loopback addresses is free")

    def environment(self, machine: int) -> Mapping[str, str]:
        """Return what makes a process and its children belong to this machine."""
        return {**NO_SHORTCUTS, MACHINE_VARIABLE: f"{_name(self._block)}:{machine}"}

    def listens(self, machine: int) -> str:
        return behind(self._block, machine)

    def reached(self, machine: int, *ports: int) -> str:
        """Relay these ports of this machine, from now on; again is nothing. Return their address."""
        if ports:
            self.tell({"serve": [[machine, port] for port in ports]})
        return reached(self._block, machine)


def behind(block: tuple[int, int], machine: int) -> str:
    return f"127.{block[0]}.{block[1]}.{machine}"


def reached(block: tuple[int, int], machine: int) -> str:
    return f"127.{block[0]}.{block[1] + 1}.{machine}"


def _name(block: tuple[int, int]) -> str:
    return f"{block[0]}.{block[1]}"


# -- who connects ------------------------------------------------------------------------------------------------------


_LOOKS = 3
"""Number of looks for a socket: the table of all of them is read in pieces, and may pass one over as others come and
go."""


class Owners:
    """Search for the machine whose process holds a socket. Processes are scanned again when no known one does."""

    def __init__(self, block: tuple[int, int], proc: Path = Path("/proc")) -> None:
        self._mark = f"{MACHINE_VARIABLE}={_name(block)}:".encode()
        self._proc = proc
        self._machines: dict[str, tuple[str, int]] = {}
        """By process id: when it began, which tells it from a later one of the same id, and its machine."""

    def machine_of(self, host: str, port: int) -> int:
        """Return the machine whose process has a socket of this local address; 0 if none has it, or one of no
        machine."""
        for _ in range(_LOOKS):
            if inode := self._inode_of(host, port):
                if not (found := self._among_known(inode)):
                    self._look_around()
                    found = self._among_known(inode)
                return found
        return 0

    def _among_known(self, inode: str) -> int:
        for pid, (began, machine) in self._machines.items():
            if self._holds(pid, f"socket:[{inode}]") and self._began(pid) == began:
                return machine
        return 0

    def _holds(self, pid: str, what: str) -> bool:
        with contextlib.suppress(OSError), os.scandir(self._proc / pid / "fd") as descriptors:
            for one in descriptors:
                with contextlib.suppress(OSError):
                    if os.readlink(one.path) == what:
                        return True
        return False

    def _inode_of(self, host: str, port: int) -> str:
        (number,) = struct.unpack("=I", socket.inet_aton(host))
        wanted = f"{number:08X}:{port:04X}"
        with (self._proc / "net" / "tcp").open() as table:
            for line in table:
                words = line.split()
                if words[1] == wanted and words[9] != "0":
                    return words[9]
        return ""

    def _look_around(self) -> None:
        """Find the processes of all machines."""
        self._machines = {}
        for pid in os.listdir(self._proc):
            if not pid.isdigit():
                continue
            with contextlib.suppress(OSError):
                environment = (self._proc / pid / "environ").read_bytes().split(b"\0")
                for one in environment:
                    if one.startswith(self._mark):
                        self._machines[pid] = (self._began(pid), int(one[len(self._mark) :]))

    def _began(self, pid: str) -> str:
        """Return the start time of a process; empty when it has ended."""
        try:
            return (self._proc / pid / "stat").read_text().rpartition(")")[2].split()[19]
        except (OSError, IndexError):
            return ""


# -- the program that relays -------------------------------------------------------------------------------------------


class Way:
    """One direction of a connection, with the data on the way."""

    def __init__(self, source: int, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.source, self.target, self.reader, self.writer = source, target, reader, writer
        self.pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING)


class Relay:
    """All relays of one block. `links` has the faults by source and target."""

    def __init__(self, block: tuple[int, int]) -> None:
        self._block = block
        self._owners = Owners(block)
        self._servers: dict[tuple[int, int], asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._rng = random.Random(0)
        self._mended = asyncio.Event()
        """Set and replaced when `links` change."""
        self.links: Links = {}

    async def run(self) -> None:
        """Carry data and obey the lines of standard input until it ends."""
        loop = asyncio.get_running_loop()
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        while line := await commands.readline():
            what = json.loads(line)
            for machine, port in what.get("serve", ()):
                await self._serve(machine, port)
            if "links" in what:
                self.links = links_in(what)
                self._mended.set()
                self._mended = asyncio.Event()
            answer(DONE)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, machine: int, port: int) -> None:
        if (machine, port) in self._servers:
            return

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(machine, port, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        host = reached(self._block, machine)
        self._servers[machine, port] = await asyncio.start_server(
            connected, host, port, limit=PIECE, backlog=LISTEN_BACKLOG
        )

    async def _connection(
        self, machine: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection to a server of `machine`, from beginning to end."""
        source = self._owners.machine_of(*writer.get_extra_info("peername")[:2])
        try:
            await self._while_cut(source, machine)  # as the first packet of a connection is
            there, back = await asyncio.open_connection(behind(self._block, machine), port, limit=PIECE)
        except OSError:
            _reset(writer)
            return
        forth, answers = Way(source, machine, reader, back), Way(machine, source, there, writer)
        work = [asyncio.ensure_future(one) for way in (forth, answers) for one in (self._take(way), self._deliver(way))]
        try:
            await asyncio.gather(*work)
            writer.close()
            back.close()
        except OSError:
            _reset(writer)
            _reset(back)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _take(self, way: Way) -> None:
        """Take what comes, until its end. Raises OSError when the connection breaks, or is broken here."""
        loop, piece = asyncio.get_running_loop(), b"-"
        while piece:
            piece = await way.reader.read(PIECE)
            due = loop.time()
            if (link := self.links.get((way.source, way.target))) is not None:
                due += link.delay_us / 1e6 + self._lost(link, piece)
            await way.pieces.put((due, piece))

    async def _deliver(self, way: Way) -> None:
        """Write the queued pieces when they are due and no cut holds them back."""
        loop = asyncio.get_running_loop()
        while True:
            due, piece = await way.pieces.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            await self._while_cut(way.source, way.target)
            if not piece:
                way.writer.write_eof()
                return
            way.writer.write(piece)
            await way.writer.drain()

    def _lost(self, link: Link, piece: bytes) -> float:
        """Return the extra delay of a piece because it was lost, 0 if it was not. Raises ConnectionResetError to reset
        the connection."""
        if not piece or link.loss >= 1.0 or self._rng.random() >= link.loss:
            return 0.0
        if self._rng.random() < RESETS:
            raise ConnectionResetError("by a lossy link")
        return REPEAT_S

    async def _while_cut(self, source: int, target: int) -> None:
        """Return when nothing keeps data from going this way."""
        while (link := self.links.get((source, target))) is not None and link.loss >= 1.0:
            await self._mended.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, with a reset."""
    with contextlib.suppress(OSError):
        one = writer.get_extra_info("socket")
        if one is not None and not writer.is_closing():
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def main() -> None:
    block = (int(sys.argv[1]), int(sys.argv[2]))
    with socket.socket() as claim:
        try:
            claim.bind((behind(block, 1), CLAIM_PORT))
        except OSError as error:
            raise SystemExit(f"the addresses 127.{block[0]}.{block[1]}.0 are in use: {error}") from error
        answer(READY)
        asyncio.run(Relay(block).run())


if __name__ == "__main__":
    main()
