"""One file of a bookie's memory of deletions, as bytes: a line of JSON and its checksum. Pure.

Not here: the sets themselves (`core/ledgers/deletions.py`); when they are written (`bookie/trust/deletion_memory.py`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

from buckram.core.ledgers.deletions import Deleted, decode_deleted
from buckram.errors import MalformedRecord
from buckram.types import MAX_LEDGER_ID, LedgerId

_VERSION = 1


def encode_file(next_id: LedgerId, buckets: Mapping[int, Deleted]) -> bytes:
    """Return the content of a file with the next id and the deleted ids of each bucket."""
    sets = {str(bucket): buckets[bucket].encode().hex() for bucket in sorted(buckets)}
    line = json.dumps({"version": _VERSION, "next_id": next_id, "deleted": sets}, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def decode_file(name: str, content: bytes) -> tuple[LedgerId, dict[int, Deleted]]:
    """Read what `encode_file` wrote. MalformedRecord for anything else."""
    line, _, checksum = content.partition(b"\n")
    try:
        if checksum != b"%08x\n" % zlib.crc32(line):
            raise ValueError("its checksum does not match")
        found = json.loads(line)
        version, next_id = found["version"], found["next_id"]
        if version != _VERSION or type(next_id) is not int or not 0 <= next_id <= MAX_LEDGER_ID:
            raise ValueError(f"version {version!r} with next id {next_id!r}")
        sets = {int(bucket): bytes.fromhex(value) for bucket, value in found["deleted"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedRecord(f"{name}: no memory of deletions ({error}); remove the file") from None
    return next_id, {bucket: decode_deleted(f"{name}, bucket {bucket}", value) for bucket, value in sets.items()}
