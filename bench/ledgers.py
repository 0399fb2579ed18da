"""Very many ledgers on one bookie, without a client and without metadata: adds as a recovery makes them, straight into
its socket. A bookie does not look up whether such a ledger exists, so a million of them take half a minute.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire.adds import ACK, ACK_BYTES, RECOVERY_ADD, frame_adds
from buckram.core.wire.messages import Read
from buckram.core.wire.v2 import encode_request
from buckram.types import DigestType

BATCH = 2000
BUSY_S = 0.05
OK, TOO_BUSY = 0, 106
"""Codes of wire protocol 2."""
_CODE = struct.Struct(">i")


def add_entry(port: int, ledgers: Iterable[int], entry: int = 0, *, size: int = 100, host: str = "127.0.0.1") -> int:
    """Entry `entry` of each of these ledgers (password empty, CRC32C), all answers awaited. What the bookie refuses
    because it is busy is sent again; how many those were."""
    body, key, digest = [b"x" * size], master_key(b""), Digest(DigestType.CRC32C, b"")
    refused = 0
    with socket.create_connection((host, port), timeout=60) as connection:
        for batch in _batches(ledgers):
            while batch:
                frames = b"".join(
                    frame_adds(digest, key, ledger, entry, entry - 1, entry * size, body, RECOVERY_ADD)[0]
                    for ledger in batch
                )
                connection.sendall(frames)
                got = _read(connection, len(batch) * ACK_BYTES)
                answers = [ACK.unpack_from(got, at) for at in range(0, len(got), ACK_BYTES)]
                if odd := [code for _, _, code, _, _ in answers if code not in (OK, TOO_BUSY)]:
                    raise RuntimeError(f"the bookie at port {port} answered an add with code {odd[0]}")
                batch = [ledger for _, _, code, ledger, _ in answers if code != OK]
                refused += len(batch)
                if batch:
                    time.sleep(BUSY_S)
    return refused


def holds(port: int, ledger: int, entry: int = 0, *, host: str = "127.0.0.1") -> bool:
    """Return whether the bookie has this entry."""
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(encode_request(Read(ledger, entry)))
        length = int.from_bytes(_read(connection, 4), "big")
        code: int = _CODE.unpack_from(_read(connection, length), 4)[0]
        return code == OK


def _read(connection: socket.socket, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        piece = connection.recv(size - len(pieces))
        if not piece:
            raise RuntimeError("the bookie closed the connection")
        pieces += piece
    return bytes(pieces)


def _batches(ledgers: Iterable[int]) -> Iterator[list[int]]:
    source = iter(ledgers)
    while batch := list(islice(source, BATCH)):
        yield batch
