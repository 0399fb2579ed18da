"""Very many ledgers on one bookie, without a client and without metadata: adds as a recovery makes them, straight into
its socket. A bookie asks nobody whether such a ledger exists, so a million of them take half a minute.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from itertools import islice

from buckram.core.adds import ACK_BYTES, RECOVERY_ADD, frame_adds
from buckram.core.entry import Digest, master_key
from buckram.types import DigestType

BATCH = 2000


def add_entry(port: int, ledgers: Iterable[int], entry: int = 0, *, size: int = 100) -> int:
    """Entry `entry` of each of these ledgers (password empty, CRC32C); how many. The answers are all awaited."""
    body, key, digest = [b"x" * size], master_key(b""), Digest(DigestType.CRC32C, b"")
    added = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for batch in _batches(ledgers):
            made = [frame_adds(digest, key, one, entry, entry - 1, entry * size, body, RECOVERY_ADD) for one in batch]
            connection.sendall(b"".join(frame for frames, _, _ in made for frame in frames))
            expected = sorted(answer for _, answer, _ in made)
            got = _read(connection, len(batch) * ACK_BYTES)
            # A bookie answers in any order.
            if sorted(got[at : at + ACK_BYTES] for at in range(0, len(got), ACK_BYTES)) != expected:
                raise RuntimeError(f"the bookie at port {port} did not take every add")
            added += len(batch)
    return added


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
