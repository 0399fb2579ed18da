"""Payloads of actors: each follows from its position, so that every read can be checked by itself."""

from __future__ import annotations

import hashlib

_SIZES = (20, 100, 700, 3000)


def entry_payload(ledger: int, entry: int) -> bytes:
    """Return the payload of an entry: its ledger and id, then bytes that depend on both. 20 to 3,000 bytes."""
    return _filled(b"entry %d of %d " % (entry, ledger), entry * 2654435761 + ledger)


def record_value(producer: str, sequence: int) -> bytes:
    """Return the value of a record: its producer and sequence, then bytes that depend on both."""
    return _filled(b"record %d of %s " % (sequence, producer.encode()), sequence * 40503 + len(producer))


def producer_of(value: bytes) -> tuple[str, int]:
    """Producer and sequence of a value. Raises ValueError unless it is exactly what the producer wrote."""
    words = value.split(b" ", 4)
    if len(words) < 5 or words[0] != b"record" or words[2] != b"of":
        raise ValueError(f"no record of an actor: {value[:40]!r}")
    producer, sequence = words[3].decode(), int(words[1])
    if value != record_value(producer, sequence):
        raise ValueError(f"record {sequence} of {producer} is changed: {value[:40]!r} ... ({len(value)} bytes)")
    return producer, sequence


def _filled(head: bytes, number: int) -> bytes:
    size = _SIZES[number // 7 % len(_SIZES)]
    pattern = hashlib.blake2b(head, digest_size=16).digest()
    return (head + pattern * (size // 16 + 1))[: max(size, len(head) + 16)]
