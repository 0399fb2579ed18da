"""Small segments are joined on the way: short-lived writers leave one each, and each is a ledger.

    seq 5 | buckram stream write numbers        again and again

A ledger has one writer, and a take-over closes it, so a writer cannot go on in the ledger of the one before. Instead a
writer that opens first joins the small segments that are there, if there are a few, as a compaction does
(`maintain/compaction.py`): the copy takes their place in one step, and a reader of the old ledgers finds its offset in
the new one. Ledgers that were joined before are deleted meanwhile, so that their number stays small without a janitor,
too. The work is optional: after a failure everything is left as it was.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.compaction import Run, small_runs
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import BuckramError, InvariantViolation
from buckram.streams.maintain.compaction import Compactable, copy_run, entries_of, replace_run
from buckram.streams.shared.ledgers import JOINED, RETIRED, discard, list_intents
from buckram.streams.shared.metadata import StreamStore

KEPT_US = 2_000_000
"""Time that a joined ledger is kept, microseconds, so that readers that have just opened it can finish."""
_READ_WITHIN_S = 1.0
_DELETED_AT_ONCE = 64


async def join_before_writing(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, policy: Policy
) -> None:
    """Join small segments if enough of them ([client] join_segments) can be read now. Only bugs raise."""
    runs = small_runs(head, policy, at_least=client.services.config.join_segments)
    if not runs:
        return
    try:
        await join(client, streams, name, head, policy, runs, purpose=JOINED)
        await _delete_joined(client, streams, head.uid)
    except InvariantViolation:
        raise
    except (BuckramError, TimeoutError):
        return


async def join(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    head: Head,
    policy: Policy,
    runs: list[Run],
    *,
    purpose: str = RETIRED,
) -> int:
    """Put one segment in the place of each run; returns how many segments were replaced.

    Nothing is made before all of a run has been read. Errors of a compaction, and TimeoutError: reading takes long.
    """
    work = Compactable(name, head.uid, head.epoch, policy, tuple(runs))
    done = 0
    for run in runs:
        async with asyncio.timeout(_READ_WITHIN_S):
            entries = [chunk async for chunk in entries_of(client, name, head.uid, run)]
        copied = await copy_run(client, streams, work, run, entries=entries)
        if await replace_run(client, streams, work, copied, purpose=purpose):
            done += len(run.rows)
    return done


async def _delete_joined(client: LedgerClient, streams: StreamStore, uid: str) -> None:
    clocks = client.services.clocks
    for intent in await list_intents(streams, uid, limit=_DELETED_AT_ONCE):
        if intent.purpose == JOINED and clocks.ended(intent.time + KEPT_US):
            with suppress(BuckramError):
                await discard(client, streams, uid, intent)


__all__ = ["join", "join_before_writing"]
