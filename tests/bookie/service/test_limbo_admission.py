"""A bookie that may have lost a fence takes nothing of a closed ledger, not even what the ledger was closed with."""

from __future__ import annotations

from pathlib import Path

from tests.bookie.test_run import damaged
from tests.support.bookie_kit import add, running

from buckram.errors import Code


async def test_a_copy_of_a_closed_ledger_comes_by_recovery_adds_only(tmp_path: Path) -> None:
    metadata = await damaged(tmp_path)
    async with running(tmp_path, metadata=metadata) as kit:
        assert kit.store.limbo
        wire = await kit.wire()
        assert (await wire.call(add(3, 0, payload=b"c"))).code is Code.FENCED
        assert (await wire.call(add(3, 0, payload=b"c", recovery=True))).code is Code.OK
