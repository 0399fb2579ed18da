from array import array
from collections.abc import Mapping
from typing import Any

from buckram.core.entries.python_twins import Row
from buckram.types import Buffer, EntryId, LedgerId

INTERFACE: int

def verify_entries(
    packet: bytes | bytearray,
    at: int,
    stride: int,
    count: int,
    size: int,
    ledger_id: LedgerId,
    first: EntryId,
    payloads: list[bytes] | None,
    /,
) -> int: ...
def seal_adds(
    header: int,
    master_key: bytes,
    ledger_id: LedgerId,
    first: EntryId,
    lac: EntryId,
    length_before: int,
    payloads: list[bytes],
    /,
) -> tuple[bytes, int]: ...
def scan_add_frames(
    chunk: Buffer, offset: int, max_packet: int, max_run_bytes: int, most_runs: int, /
) -> tuple[int, list[Row]]: ...
def take_adds(
    chunk: bytes,
    offset: int,
    max_packet: int,
    max_run_bytes: int,
    room: int,
    base: int,
    segment: int,
    ledgers: Mapping[LedgerId, Any],
    named: Mapping[LedgerId, bytes],
    waiting: Mapping[LedgerId, object],
    undecided: Mapping[LedgerId, object],
    allowed: Mapping[LedgerId, bytes] | None,
    replies: bytearray,
    counts: array[int],
    /,
) -> None: ...
def take_v3_adds(
    chunk: bytes,
    offset: int,
    max_packet: int,
    max_run_bytes: int,
    room: int,
    base: int,
    segment: int,
    ledgers: Mapping[LedgerId, Any],
    named: Mapping[LedgerId, bytes],
    waiting: Mapping[LedgerId, object],
    undecided: Mapping[LedgerId, object],
    allowed: Mapping[LedgerId, bytes] | None,
    replies: bytearray,
    counts: array[int],
    frames: bytearray,
    /,
) -> None: ...
