"""The client says in its log what happens to bookies and ledgers, and nothing of entries."""

from __future__ import annotations

import logging

import pytest
from tests.support.polling import until
from tests.support.scripted_bookie import scripted


async def test_log_names_lost_bookies_ensemble_changes_and_degraded_ledgers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "buckram.client")

    def said(level: int, words: str) -> bool:
        return any(r.levelno == level and words in r.message for r in caplog.records if r.name == "buckram.client")

    async with scripted(4) as (cluster, client), client.create(ensemble="3/3/2") as writer:
        await writer.append_many([b"x"] * 100)
        assert not caplog.records, "nothing while all is well, and nothing per entry"
        (first,) = {f"b{n}" for n in range(4)} - set(writer.metadata.last_fragment.ensemble)
        gone = writer.metadata.last_fragment.ensemble[0]
        await cluster[gone].kill()
        await writer.append(b"y")
        await until(lambda: writer.ensemble_changes == 1, "replaced")
        assert said(logging.INFO, f"ledger {writer.ledger_id}: bookie {gone} failed")
        assert said(logging.INFO, f"ledger {writer.ledger_id}: ensemble changed at entry")
        await until(lambda: said(logging.WARNING, f"bookie {gone} is lost"), "its registration is gone, too")
        await cluster[first].kill()
        await writer.append(b"z")
        await until(lambda: writer.degraded, "degraded")
        assert said(logging.WARNING, f"ledger {writer.ledger_id}: degraded, ")
        await cluster[first].start()
        await until(lambda: not writer.degraded, "healed")
        assert said(logging.INFO, f"ledger {writer.ledger_id}: healed")
        assert said(logging.INFO, f"bookie {first} has appeared")
    assert len(caplog.records) < 20
