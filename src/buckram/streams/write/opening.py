"""Becoming the writer of a stream: lease, claim, fence, seal; then the first segment's ledger is made.

docs/explanation/streams-design.md (Lease, epoch, fence) says why in this order. After a crash at any step the next
opening completes or undoes what was left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from buckram.client.ledger_client import LedgerClient, connecting
from buckram.client.shared import unclosed_warnings as leftover
from buckram.core.streams.metadata.changes import claimed, released, sealed
from buckram.core.streams.metadata.head import Head, WriterInfo
from buckram.core.streams.metadata.mirrors import check_writable
from buckram.core.streams.metadata.purposes import Act, Purpose, check_act, purpose_of
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy
from buckram.errors import BuckramError, InvariantViolation, NoSuchKey, RecoveryFailed, StreamEnded, WriterLost
from buckram.streams.shared.ledgers import discard, is_stale, list_intents
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.recovery import load_producers, recover_segment
from buckram.streams.write.engine import EngineClosed, StreamEngine
from buckram.streams.write.lease import AppendClock, Holder, Lease, WriterClaim
from buckram.streams.write.sealing import sweep_garbage

_RECOVERY_WITHIN_S = 30.0
_RECOVERY_PAUSE_S = 0.5
_SWEPT_AT_ONCE = 64

PolicyOf = Callable[[Head], Policy]
"""Returns the settings in force for a stream with this head: the stream's own, then its namespace's, then defaults."""


async def open_writer(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    policy_of: PolicyOf,
    *,
    writer_name: str,
    takeover: bool,
    wait: bool,
    linger_ms: float,
    on_closed: EngineClosed,
    flights: int = 1,
    mirror_of: str = "",
    clock: AppendClock | None = None,
    acting_for: Purpose = Purpose.RECORDS,
) -> StreamEngine:
    """Become the writer and return its engine; the arguments are those of Namespace.writer.

    Records linger while `flights` entries are in flight. `mirror_of`: the stream is a mirror of the one of this uid.
    `clock`: what gives append times, in microseconds UTC; None: that of the client. `acting_for`: the purpose of the
    stream, needed to write one that is not for records.

    Raises MachineLog, StreamPurpose, MirrorStream, WriterExists, WriterLost, StreamEnded, NoSuchStream, and
    NotEnoughBookies or RecoveryFailed, which a later attempt may not meet.
    """
    runtime = client.services.runtime
    head = (await streams.read(name)).head
    nonce = f"{runtime.rng.getrandbits(64):016x}"
    me = Holder(writer_name or f"writer-{nonce[:6]}", nonce, runtime.clock.wall_us())
    writer: list[StreamEngine] = []
    lost: list[str] = []

    def lease_lost(reason: str) -> None:
        lost.append(reason)
        for present in writer:
            present.lease_lost(reason)

    def closed(writer: StreamEngine) -> None:
        leftover.deregister_unclosed(nonce)
        on_closed(writer)

    check_act(str(name), head, Act.WRITE, acting_for)
    if head.ended:
        raise StreamEnded(str(name), head.end)
    check_writable(str(name), head, mirror_of)  # Before the lease: a writer that may not write must not take it.
    lease = Lease(streams, name, head.uid, me, lease_lost, client.services.guard)
    try:
        await lease.acquire(takeover=takeover, wait=wait)
        claim, head = await _claim(client, streams, name, head.uid, me, mirror_of, acting_for)
        try:
            head = await _seal(claim, head)
            table = await load_producers(client, streams, name, head)
            opened = StreamEngine(
                claim,
                head,
                policy_of(head),
                table,
                name=me.name,
                linger_ms=linger_ms,
                on_closed=closed,
                flights=flights,
                clock=clock,
            )
            first = await opened.prepare()
        except BuckramError:
            await _unclaim(claim)
            raise
    except BaseException:
        await lease.close()
        raise
    writer.append(opened)
    opened.start(lease, first)
    if lost:
        await opened.abandon()
        raise WriterLost(str(name), f"{lost[0]} while this writer opened")
    opened.run(_sweep(claim, head), "sweep")
    opened.run(client.services.clocks.follow(), "clocks")
    if not mirror_of and head.snapshots is None:  # No bulk step writes into the log of a machine.
        opened.serve_insertions()
    if client.uri and not mirror_of:
        seal = partial(_seal_left, client.uri, name, head.uid, nonce, policy_of)
        leftover.register_unclosed(nonce, opened, seal, what=f"stream {name}", later="the next writer or a janitor")
    return opened


async def _seal_left(uri: str, name: StreamName, uid: str, nonce: str, policy_of: PolicyOf) -> None:
    """Seal the stream of a writer whose event loop ended before it was closed, unless another writer has it."""
    async with connecting(LedgerClient, uri) as client:
        streams = StreamStore(client.services.store)
        head = (await streams.read(name)).head
        if head.uid != uid or head.writer is None or head.writer.nonce != nonce:
            return
        with suppress(NoSuchKey):
            key = streams.layout.lease(uid)
            found = await streams.keys.get(key)
            if Holder.decode(found.value).nonce != nonce:
                return
            await streams.keys.delete(key, found.version)
        writer = await open_writer(
            client,
            streams,
            name,
            policy_of,
            writer_name="at exit",
            takeover=False,
            wait=False,
            linger_ms=0,
            on_closed=lambda _: None,
            acting_for=purpose_of(str(name), head),
        )
        await writer.close()


async def _claim(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    uid: str,
    me: Holder,
    mirror_of: str,
    acting_for: Purpose,
) -> tuple[WriterClaim, Head]:
    """Raise the epoch in the head, after which no older writer can change it. Returns the claim and the new head."""
    info = WriterInfo(me.name, me.nonce, me.since)
    head = await streams.change(name, lambda head: claimed(str(name), head, info, mirror_of, acting_for), uid=uid)
    if head.writer is None or head.writer.nonce != me.nonce:
        raise WriterLost(str(name), "another writer took it over while this one opened")
    return WriterClaim(client, streams, name, uid, head.epoch, me.nonce), head


async def _unclaim(claim: WriterClaim) -> None:
    """Remove this writer from the head after a failed opening.

    If the segment of the writer before is still open, the head keeps a writer, since the segment has to be recovered.
    """
    name = str(claim.name)
    with suppress(BuckramError):
        await claim.streams.change(
            claim.name,
            lambda head: None if head.open_segment else released(name, head, claim.nonce, None),
            uid=claim.uid,
            within_s=1.0,
        )


async def _seal(claim: WriterClaim, head: Head) -> Head:
    """Fence and seal the segment that the writer before left open. Raises RecoveryFailed after half a minute."""
    segment = head.open_segment
    if segment is None:
        return head
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _RECOVERY_WITHIN_S
    while True:
        try:
            summary = await recover_segment(claim.client, claim.name, claim.uid, segment.ledger)
            break
        except RecoveryFailed:
            if loop.time() + _RECOVERY_PAUSE_S >= deadline:
                raise
        await asyncio.sleep(_RECOVERY_PAUSE_S)
    name, ledger = str(claim.name), segment.ledger
    return await claim.streams.change(
        claim.name, lambda head: sealed(name, head, claim.epoch, ledger, summary), uid=claim.uid
    )


async def _sweep(claim: WriterClaim, head: Head) -> None:
    """Delete ledgers that earlier writers made and did not list. What fails is left to the janitor."""
    try:
        if head.garbage:
            await sweep_garbage(claim, head)
        for intent in await list_intents(claim.streams, claim.uid, limit=_SWEPT_AT_ONCE):
            if is_stale(intent, head) and intent.epoch < claim.epoch:
                await discard(claim.client, claim.streams, claim.uid, intent)
    except InvariantViolation:
        raise
    except BuckramError:
        return
