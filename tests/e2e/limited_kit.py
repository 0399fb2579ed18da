"""A bookie as a process with few resources, and a minimal client: raw adds and reads of one ledger."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire.adds import frame_add
from buckram.runtime.net.local_sockets import name_of
from buckram.types import DigestType

KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C, b"")


class Limited:
    """`buckram bookie run` with at most `files` descriptors. Its metadata is in `metadata`, which has room."""

    def __init__(
        self, directory: Path, metadata: Path, *, files: tuple[int, int] | None = None, **environment: str
    ) -> None:
        self.directory, self.log = directory, metadata / "log"
        command = [sys.executable, "-m", "buckram", "bookie", "run", "--data", str(directory), "--json", "--port", "0"]
        limit = None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)
        self.process = subprocess.Popen(
            [*command, "--metadata", f"sqlite://{metadata / 'metadata.db'}", "--id", "b1"],
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
            preexec_fn=limit,  # nothing else runs
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "BUCKRAM_BOOKIE_ADMISSION": "any",
                **environment,
            },
        )
        self.host, self.port = "", 0

    def ready(self) -> Limited:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        said: dict[str, Any] = json.loads(line)
        self.host, self.port = said["host"], said["port"]
        return self

    def said(self) -> str:
        return self.log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def connect(self, *, local: bool = False) -> Peer:
        if not local:
            return Peer(socket.create_connection((self.host, self.port), 20))
        door = socket.socket(socket.AF_UNIX)
        door.settimeout(20)
        door.connect(name_of(self.host, self.port))
        return Peer(door)

    def logs(self) -> list[Path]:
        return sorted(self.directory.glob("log-*"))


class Peer:
    """One connection. Entries' payloads follow from their ids."""

    def __init__(self, door: socket.socket) -> None:
        self.door = door
        self._stream = door.makefile("rb")

    def _answer(self) -> bytes:
        head = self._stream.read(4)
        assert len(head) == 4, "the bookie closed the connection"
        return self._stream.read(int.from_bytes(head, "big"))

    def add(self, ledger: int, first: int, count: int, size: int) -> list[int]:
        """Send adds and wait; the status code of each."""
        self.send(ledger, first, count, size)
        return self.codes(count)

    def send(self, ledger: int, first: int, count: int, size: int) -> None:
        frames = [frame_add(KEY, DIGEST.seal(ledger, n, n - 1, n + 1, payload(n, size))) for n in sized(first, count)]
        self.door.sendall(b"".join(frames))

    def codes(self, count: int) -> list[int]:
        """The status codes of so many adds, in the order of their entries: a refusal may overtake what is synced."""
        answers = [self._answer() for _ in range(count)]
        return [code for _, code in sorted((body[16:24], int.from_bytes(body[4:8], "big")) for body in answers)]

    def read(self, ledger: int, entry: int, size: int) -> int:
        """Read an entry; its status code. The bytes of a successful read are checked."""
        self.door.sendall(struct.pack(">IIqq", 20, 0x02020000, ledger, entry))
        body = self._answer()
        code = int.from_bytes(body[4:8], "big")
        assert code or body[24:] == DIGEST.seal(ledger, entry, entry - 1, entry + 1, payload(entry, size))
        return code

    def close(self) -> None:
        self._stream.close()
        self.door.close()


def sized(first: int, count: int) -> range:
    return range(first, first + count)


def payload(entry: int, size: int) -> bytes:
    return struct.pack(">q", entry) * (size // 8)


def set_limit(process: subprocess.Popen[bytes], files: int) -> None:
    """Limit the process to descriptors below this number; those that are open stay open."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, hard))


def descriptors(process: subprocess.Popen[bytes]) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))
