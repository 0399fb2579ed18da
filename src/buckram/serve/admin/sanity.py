"""Stores an entry on one bookie and reads it from there, through its port, as clients do."""

from __future__ import annotations

import asyncio
import secrets

from buckram.client.ledger_client import LedgerClient
from buckram.client.write.create import register
from buckram.client.write.engine import LedgerAppender
from buckram.client.write.writer import Writer
from buckram.core.ledgers.metadata import created
from buckram.errors import ReadFailed, WriteFailed
from buckram.types import BIRTH_SIZE, BookieId, DigestType

WITHIN_S = 10.0


async def stored_and_read(client: LedgerClient, bookie: BookieId) -> None:
    """Make a ledger of this bookie alone, write, read, delete it. Raises what fails, TimeoutError among it."""
    services = client.services
    record = created(
        1, 1, 1, (bookie,), digest_type=DigestType.CRC32C, password=b"", custom_metadata={"application": b"sanity"},
        creation_time_ms=services.runtime.clock.wall_us() // 1000,
        creator_token=secrets.randbelow(2**63 - 2) + 1,
        birth=secrets.token_bytes(BIRTH_SIZE),
    )  # fmt: skip
    async with asyncio.timeout(WITHIN_S):
        ledger, current = await register(services, None, record)
        try:
            writer = Writer(LedgerAppender(services, ledger, current, password=b""))
            async with writer:
                payload = secrets.token_bytes(64)
                await writer.append(payload)
            async with client.open(ledger) as reader:
                if any(fragment.ensemble != (bookie,) for fragment in reader.metadata.fragments):
                    raise WriteFailed(ledger, f"another bookie took the entry, because {bookie} failed")
                if bytes((await reader.get(0)).payload) != payload:
                    raise ReadFailed(ledger, f"bookie {bookie} gives another entry than it was sent")
        finally:
            await client.delete(ledger, force=True)
