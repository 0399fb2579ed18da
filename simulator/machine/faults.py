"""Faults of machines, besides those of `simulator/engine/faults`: leases that end, crashes, pauses, damaged
snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from buckram.cluster import Client
from buckram.core.streams.metadata.changes import HeadStep
from buckram.core.streams.metadata.head import Head, SnapshotRow, decode_head
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import merged
from buckram.errors import BuckramError
from buckram.streams.shared.ledgers import SNAPSHOT, make_ledger, present_op
from buckram.streams.shared.metadata import StreamStore
from simulator.engine.faults import FaultRunner
from simulator.engine.faults.registry import MACHINES, STREAMS, fault_names, register_own
from simulator.engine.world import Died, World

NAMESPACE, MACHINE = "default", "book"
NAME = StreamName(NAMESPACE, MACHINE)
VANDAL = "v1"
"""The host that damages snapshots."""


def _replicas(f: FaultRunner) -> list[str]:
    return [host for host in f.client_hosts() if host.startswith("m") and not f.world.processes[host].dead]


def _leader(f: FaultRunner) -> str:
    """Return the host that the log's head names as its writer; empty if it names none."""
    place = f"/streams/heads/{NAMESPACE}/{MACHINE}"
    for key, found in f.world.metadata.snapshot().keys.items():
        if key.endswith(place):
            writer = decode_head(str(NAME), found.value).writer
            name = writer.name if writer is not None else ""
            return name.removeprefix("http://").partition(":")[0]  # Servers of databases announce their addresses.
    return ""


async def expire_replica(f: FaultRunner) -> None:
    """Expire a replica's session while it goes on leading; another one may take the lease at once."""
    for _ in range(f.rng.choice((1, 1, 2))):
        hosts = _replicas(f)
        if hosts:
            host = f.rng.choice(hosts)
            f.world.sessions[host].expire()
            f.world.report.situation("a lease ended under a replica")
            f.world.disturb(host, 0)
        await asyncio.sleep(f.rng.random())


async def crash_replica(f: FaultRunner) -> None:
    hosts = _replicas(f)
    if hosts:
        host = f.rng.choice(hosts)
        f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 200))
        f.world.disturb(host, 0)


async def pause_replica(f: FaultRunner) -> None:
    """Pause a replica long enough for others to take over; it goes on with an old epoch."""
    hosts = _replicas(f)
    if hosts:
        host = f.rng.choice(hosts)
        f.world.pause(host)
        await asyncio.sleep(f.rng.random() * 6)
        f.world.resume(host)


async def lose_head(f: FaultRunner) -> None:
    """Lose requests to the metadata store, or their replies, where a replica changes the head or its neighbours."""
    for _ in range(3):
        hosts = _replicas(f)
        if hosts:
            what = f.rng.choice(("/streams/heads/", "/streams/heads/", "/intents/", "/lease"))
            f.world.metadata.lose_next(f.rng.choice(("before", "after", "after")), f.rng.choice(hosts), what)
        await asyncio.sleep(f.rng.random() * 0.5)


@contextmanager
def _cut(world: World, host: str, links: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Drop all messages on these links of a host, each from a source to a target."""
    world.disturb(host, 1)
    for source, target in links:
        world.fabric.block(source, target)
    yield
    for source, target in links:
        world.fabric.unblock(source, target)
    world.disturb(host, -1)


async def cut_off_replica(f: FaultRunner) -> None:
    """Cut a replica off from all hosts, or from the metadata store alone, while its lease ends."""
    hosts = _replicas(f)
    if not hosts:
        return
    host, world = f.rng.choice(hosts), f.world
    others = ["meta"] if f.rng.random() < 0.5 else [name for name in [*world.processes, "meta"] if name != host]
    with _cut(world, host, [link for other in others for link in ((host, other), (other, host))]):
        await asyncio.sleep(f.rng.random() * 6)


async def depose_leader(f: FaultRunner) -> None:
    """Expire the leader's session while the store cannot reach it: it believes to lead, and reaches all bookies."""
    host, world = _leader(f), f.world
    if host not in _replicas(f):
        return
    with _cut(world, host, [("meta", host), (host, "meta")]):
        world.sessions[host].expire()
        world.report.situation("a lease ended under a replica")
        await asyncio.sleep(1.0 + f.rng.random() * 4)


async def deafen_leader(f: FaultRunner) -> None:
    """Block all answers to the leader, not its requests: what it writes is stored and never acknowledged to it."""
    host, world = _leader(f), f.world
    if host not in _replicas(f):
        return
    bookies = [machine.host for machine in world.machines.values()]
    others = [*bookies, "meta"] if f.rng.random() < 0.5 else bookies
    with _cut(world, host, [(other, host) for other in others]):
        await asyncio.sleep(f.rng.random() * 6)


async def damage_snapshot(f: FaultRunner) -> None:
    """Replace the newest of at least two snapshots by one with the same row, but with the bytes of another state."""
    await asyncio.sleep(f.rng.random() * 3)
    for _ in range(4):
        try:
            client = await f.world.client(VANDAL)
            process = f.world.processes[VANDAL]
            damaged = await f.world.join(process, _damage(client, f.plan.notes), "damage")
            await f.world.join(process, client.close(), "close")
            if damaged:
                f.world.report.situation("a snapshot was damaged")
                await crash_replica(f)  # so that a restarted replica reads it
                return
        except (BuckramError, Died) as error:
            f.world.trace.note(VANDAL, f"cannot damage: {error!r}")
        await asyncio.sleep(1.0)


def _good(head: Head, damaged: Mapping[str, int]) -> list[SnapshotRow]:
    return [row for row in head.snapshots or () if f"damaged {row.ledger}" not in damaged]


async def _damage(client: Client, damaged: dict[str, int]) -> bool:
    """Replace the newest snapshot if it is good and another one is, too. `damaged` names those that are not."""
    streams = StreamStore(client.services.store)
    head = (await streams.read(NAME)).head
    good = _good(head, damaged)
    if len(good) < 2 or good[-1] != (head.snapshots or ())[-1]:
        return False
    newest, policy = good[-1], merged(head.policy)
    writer, intent = await make_ledger(client, streams, NAME, head.uid, policy, epoch=head.epoch, purpose=SNAPSHOT)
    async with writer, client.open(newest.ledger) as reader:
        async for chunk in reader.payload_chunks():
            for payload in chunk:
                await writer.append(_other(bytes(payload)))
    bad = newest._replace(ledger=writer.ledger_id)
    damaged[f"damaged {bad.ledger}"] = 1

    def exchange(now: Head) -> HeadStep | None:
        present = now.snapshots or ()
        if now.epoch != head.epoch:  # A new leader may delete snapshots of an older epoch.
            return None
        if newest not in present or len(_good(now, damaged)) < 2:
            return None
        return HeadStep(replace(now, snapshots=tuple(bad if row == newest else row for row in present)))

    after = await streams.change(
        NAME, exchange, uid=head.uid, extra=lambda now: [present_op(streams, head.uid, intent)]
    )
    return bad in (after.snapshots or ())


def _other(payload: bytes) -> bytes:
    """Return another state in place of a state; a book's can be restored, and has a wrong number of commands.

    A payload that is no state is returned unchanged.
    """
    if payload[:1] != b"D":
        return payload
    if not payload.endswith(b"]"):
        return payload[:-1] + bytes([payload[-1] ^ 1])
    body, _, count = payload.rpartition(b", ")
    return body + b", " + str(int(count.rstrip(b"]")) + 1).encode() + b"]"


OWN_FAULTS = register_own(
    MACHINES,
    {
        "expire a replica": (5, expire_replica),
        "crash a replica": (4, crash_replica),
        "pause a replica": (5, pause_replica),
        "lose a head of a machine": (3, lose_head),
        "cut off a replica": (4, cut_off_replica),
        "deafen the leader": (3, deafen_leader),
        "depose the leader": (3, depose_leader),
        "damage a snapshot": (3, damage_snapshot),
    },
)
"""Relative weights. A life gets one to three of these besides the common faults."""


def all_fault_names() -> list[str]:
    """Return the names of all faults of lives of machines, and of what is built on them."""
    return fault_names(STREAMS, MACHINES)


__all__ = ["MACHINE", "NAME", "NAMESPACE", "OWN_FAULTS", "VANDAL", "all_fault_names"]
