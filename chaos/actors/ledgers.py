"""Actors of ledgers: one writes ledger after ledger, one tails what others write, one recovers and deletes.

Some ledgers are written with explicit ids, with deferred sync or with an enforced placement.
"""

from __future__ import annotations

import asyncio
import functools

from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.errors import BuckramError, DuplicateEntry, NoSuchLedger
from buckram.types import LedgerId
from chaos.actors.stage import MARK, Stage
from chaos.payloads import entry_payload

SHAPES = ("3/3/2", "3/2/2", "4/3/2", "3/3/3")
_ENTRIES = (1, 30, 300, 1500)
_IN_FLIGHT = 4
_PAUSE_S = 0.1
"""Seconds between batches, which leave two cores time for the faults, and the verdict for every copy."""
PLAIN, EXPLICIT, DEFERRED, PLACED = "plain", "explicit ids", "deferred sync", "placed"
_KINDS = (PLAIN,) * 3 + (EXPLICIT, DEFERRED) + (PLACED,) * 5
"""Kinds of ledgers to draw from. Half are placed ones, so that one of them is being written when only the bookies of
one rack are left."""
PLACEMENT = "rack:2 enforce"


async def write_ledgers(stage: Stage) -> None:
    """Write ledgers of all shapes and lengths. Most are closed, some are left open as a crash would leave them."""

    async def work(client: Client) -> None:
        await _one_ledger(stage, client)
        await stage.pause(0.3)

    await stage.with_clients(work)


async def _one_ledger(stage: Stage, client: Client) -> None:
    rng, record = stage.rng, stage.recorder.record
    shape, kind = rng.choice(SHAPES), rng.choice(_KINDS)
    if kind == PLACED:
        shape = SHAPES[0]  # two of three answers could come from one rack
    writer = await client.create(
        ensemble=shape,
        custom_metadata={MARK: stage.name},
        explicit_ids=kind == EXPLICIT,
        deferred_sync=kind == DEFERRED,
        placement=PLACEMENT if kind == PLACED else None,
    )
    ledger = writer.ledger_id
    record("created", ledger=ledger, shape=shape, kind=kind)
    append = {EXPLICIT: _append_with_ids, DEFERRED: _append_and_force}.get(kind, _append)
    try:
        await append(stage, writer, rng.choice(_ENTRIES))
        if rng.random() < 0.1:
            await writer.abandon()
            record("abandoned", ledger=ledger, pushed=writer.last_pushed)
            return
        await writer.close()
    except BuckramError as error:
        record("failed", ledger=ledger, pushed=writer.last_pushed, what=type(error).__name__, text=str(error)[:200])
        await stage.pause(0.2)
        return
    fragments = len(writer.metadata.fragments)
    record("closed", ledger=ledger, last=writer.last_confirmed, length=writer.length, kind=kind, fragments=fragments)


async def _append(stage: Stage, writer: Writer, entries: int) -> None:
    """Append in batches, several in flight; each acknowledgement is recorded as its range of ids."""
    ledger, following = writer.ledger_id, 0
    flight: list[asyncio.Task[range]] = []
    expected: list[range] = []

    async def settle() -> None:
        ids, wanted = await flight.pop(0), expected.pop(0)
        stage.recorder.record("acked", ledger=ledger, first=ids.start, last=ids.stop - 1, as_sent=ids == wanted)

    try:
        while following < entries and not stage.stop.is_set():
            count = min(stage.rng.choice((1, 5, 40)), entries - following)
            batch = [entry_payload(ledger, entry) for entry in range(following, following + count)]
            stage.recorder.record("sent", ledger=ledger, last=following + count - 1)
            flight.append(asyncio.ensure_future(writer.append_many(batch)))
            expected.append(range(following, following + count))
            following += count
            await asyncio.sleep(0)  # so that the batch gets its ids before the next one
            if len(flight) >= _IN_FLIGHT:
                await settle()
            await stage.pause(_PAUSE_S)
        while flight:
            await settle()
    finally:
        for task in flight:
            task.cancel()
        await asyncio.gather(*flight, return_exceptions=True)


async def _append_with_ids(stage: Stage, writer: Writer, entries: int) -> None:
    """Append with ids that come in any order; one that was given out already must be refused."""
    ledger, rng, record = writer.ledger_id, stage.rng, stage.recorder.record
    for first in range(0, entries, 20):
        ids = list(range(first, min(first + 20, entries)))
        done: list[int] = []
        record("sent", ledger=ledger, last=ids[-1])
        waits = []
        for entry in rng.sample(ids, len(ids)):
            wait = writer.append_nowait(entry_payload(ledger, entry), entry_id=entry)
            wait.add_done_callback(functools.partial(_note, done, entry))
            waits.append(wait)
        await asyncio.gather(*waits, return_exceptions=True)
        outcomes = [wait.result() for wait in waits]
        record("acked", ledger=ledger, first=ids[0], last=ids[-1], as_sent=sorted(outcomes) == ids)
        refused = await _refuses(writer, rng.choice(ids))
        record("explicit", ledger=ledger, first=ids[0], in_order=done == ids, refused=refused)
        if stage.stop.is_set():
            return
        await stage.pause(_PAUSE_S)


def _note(done: list[int], entry: int, _: asyncio.Future[int]) -> None:
    done.append(entry)


async def _refuses(writer: Writer, entry: int) -> bool:
    try:
        await writer.append(b"twice", entry_id=entry)
    except DuplicateEntry:
        return True
    return False


async def _append_and_force(stage: Stage, writer: Writer, entries: int) -> None:
    """Append under deferred sync. Only entries made durable by a force are recorded as acknowledged."""
    ledger, forced = writer.ledger_id, -1
    for first in range(0, entries, 40):
        last = min(first + 40, entries) - 1
        stage.recorder.record("sent", ledger=ledger, last=last)
        ids = await writer.append_many([entry_payload(ledger, entry) for entry in range(first, last + 1)])
        as_sent = ids == range(first, last + 1)
        if stage.rng.random() < 0.5 or last == entries - 1:
            durable = await writer.force()
            as_sent = as_sent and durable == last
            stage.recorder.record("acked", ledger=ledger, first=forced + 1, last=durable, as_sent=as_sent)
            forced = durable
        if stage.stop.is_set():
            return
        await stage.pause(_PAUSE_S)


async def _choose(stage: Stage, client: Client) -> LedgerId | None:
    """Choose one of the newest ledgers of actors; None if there is none."""
    newest = [ledger async for ledger in client.list()][-12:]
    stage.rng.shuffle(newest)
    for ledger in newest:
        try:
            if MARK in (await client.metadata(ledger)).custom_metadata:
                return ledger
        except NoSuchLedger:
            continue
    await stage.pause(0.3)
    return None


async def read_ledgers(stage: Stage) -> None:
    """Tail ledgers that others write, and check every entry at once."""

    async def work(client: Client) -> None:
        if (ledger := await _choose(stage, client)) is not None:
            await _tail(stage, client, ledger)

    await stage.with_clients(work)


async def _tail(stage: Stage, client: Client, ledger: LedgerId) -> None:
    """Tail a ledger for up to five seconds. `lac` is the reader's last readable entry at the end, `fell` whether it
    ever decreased, `beyond` whether an entry came that was not readable yet."""
    following, ended, wrong, fell, beyond, confirmed = 0, False, "", False, False, -1
    try:
        async with client.open(ledger) as reader:
            tail = reader.tail()
            try:
                async with asyncio.timeout(5.0):
                    while not wrong and not stage.stop.is_set():
                        entries = await tail.next_chunk()
                        if not entries:
                            ended = True
                            break
                        for entry in entries:
                            if entry.entry_id != following or entry.payload != entry_payload(ledger, following):
                                wrong = f"entry {entry.entry_id} where {following} was expected: {entry.payload[:60]!r}"
                                break
                            following += 1
                        fell, confirmed = fell or reader.last_confirmed < confirmed, reader.last_confirmed
                        beyond = beyond or following - 1 > confirmed
            except TimeoutError:
                pass
            lac = reader.last_confirmed
    except NoSuchLedger:
        stage.recorder.record("gone", ledger=ledger)
        return
    told = {"ended": ended, "wrong": wrong, "fell": fell or lac < confirmed, "beyond": beyond}
    stage.recorder.record("read", ledger=ledger, last=following - 1, lac=lac, **told)


async def recover_ledgers(stage: Stage) -> None:
    """Recover ledgers under their writers now and then, open many closed ones, and delete a few."""

    async def work(client: Client) -> None:
        await stage.pause(stage.rng.random() * 3)
        ledger = await _choose(stage, client)
        if ledger is None or stage.stop.is_set():
            return
        try:
            await _recover(stage, client, ledger)
        except NoSuchLedger:
            stage.recorder.record("gone", ledger=ledger)

    await stage.with_clients(work)


async def _recover(stage: Stage, client: Client, ledger: LedgerId) -> None:
    stage.recorder.record("recovers", ledger=ledger)
    async with client.recover(ledger) as reader:
        stage.recorder.record("recovered", ledger=ledger, last=reader.last_confirmed, length=reader.length)
    if stage.rng.random() < 0.1:
        stage.recorder.record("deletes", ledger=ledger)
        await client.delete(ledger)
        stage.recorder.record("deleted", ledger=ledger)
