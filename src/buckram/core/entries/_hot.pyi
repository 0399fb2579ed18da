from buckram.core.entries.scan import Row
from buckram.types import EntryId, LedgerId

INTERFACE: int

def verified(
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
def sealed(
    header: int,
    master_key: bytes,
    ledger_id: LedgerId,
    first: EntryId,
    lac: EntryId,
    length_before: int,
    payloads: list[bytes],
    /,
) -> tuple[bytes, int]: ...
def scanned(chunk: bytes, offset: int, max_packet: int, max_run_bytes: int, /) -> tuple[int, list[Row]]: ...
