"""Databases beside trouble: a writer that idles inside its transaction, and a leader that is killed. 3/3/2."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bench.databases import CREATE, INSERT, SECONDS, text
from bench.harness import Bench, inside
from bench.served import Served, connections, served
from buckram import Client, Database, DatabaseBusy, DatabaseLimits, NotLeader, TransactionExpired

Figures = dict[str, Any]
WRITERS = 63
SHORT_S = 1.0
"""Longest wait of writers in the second half, seconds: shorter than the idle transaction may hold the database."""
LEADERS = 3
_SENDERS = 8
_POLL_S = 0.005


# -- a writer that idles ------------------------------------------------------------------------------------


@dataclass
class _Waits:
    """Outcomes of the calls: seconds until each was done, or until it failed because the database is busy."""

    done: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=lambda: [0] * WRITERS)


async def _idle_writer(bench: Bench, client: Client) -> Figures:
    """Measure twice: with the usual limits, and with writers that wait for less than the idle one may hold the
    database."""
    limits = DatabaseLimits()
    usual = await _beside_idle(client, "usual", limits)
    short = await _beside_idle(client, "short", DatabaseLimits(wait_s=SHORT_S))
    return {
        "tx": len(usual.done),
        "longest_wait_s": round(max(usual.done), 3),
        "busy": len(usual.busy),
        "writers_without_a_turn": usual.turns.count(0),
        "limit_of_a_transaction_s": limits.transaction_s,
        "short_tx": len(short.done),
        "short_longest_wait_s": round(max(short.done), 3),
        "short_busy": len(short.busy),
        "short_latest_busy_s": round(max(short.busy, default=0.0), 3),
        "short_limit_s": SHORT_S,
    }


async def _beside_idle(client: Client, name: str, limits: DatabaseLimits) -> _Waits:
    """Run 63 writers for the time of three idle transactions; a third of them writes in transactions, too."""
    async with client.namespace().database(name, limits=limits) as db:
        await db.lead()
        await db.execute(CREATE)
        waits, until = _Waits(), time.perf_counter() + max(3 * limits.transaction_s, SECONDS)
        async with asyncio.TaskGroup() as group:
            group.create_task(_idle(db, limits.transaction_s, until))
            for number in range(WRITERS):
                group.create_task(_write(db, number, waits, until))
        return waits


async def _idle(db: Database, limit_s: float, until: float) -> None:
    while time.perf_counter() < until:
        try:
            open_one = await db.begin("immediate")
        except DatabaseBusy:
            continue
        await asyncio.sleep(limit_s)
        with suppress(TransactionExpired):
            await open_one.commit()


async def _write(db: Database, number: int, waits: _Waits, until: float) -> None:
    while (began := time.perf_counter()) < until:
        try:
            if number % 3:
                await db.execute(INSERT, (text(),))
            else:
                async with db.transaction("immediate") as open_one:
                    await open_one.execute(INSERT, (text(),))
        except DatabaseBusy:
            waits.busy.append(time.perf_counter() - began)
        else:
            waits.done.append(time.perf_counter() - began)
            waits.turns[number] += 1


# -- a leader that is killed --------------------------------------------------------------------------------


async def _killed_leaders(bench: Bench, client: Client) -> Figures:
    """Kill leaders, each of a database of its own and under load, while this process has a replica that may lead."""
    took, sessions = list[float](), list[float]()
    for number in range(LEADERS):
        session, total = await _killed_leader(bench, client, f"main{number}")
        sessions.append(session)
        took.append(total)
    return {
        "take_over_s": round(statistics.median(took), 3),
        "take_over_worst_s": round(max(took), 3),
        "of_which_session_s": round(statistics.median(sessions), 3),
        "after_the_session_worst_s": round(max(whole - part for whole, part in zip(took, sessions, strict=True)), 3),
    }


async def _killed_leader(bench: Bench, client: Client, name: str) -> tuple[float, float]:
    """Seconds from the kill until the leader's session was over, and until this process had committed something."""
    with served(bench, name) as leader, connections(leader.port, _SENDERS) as senders:
        await senders[0].execute(f"default/{name}", CREATE)
        async with client.namespace().database(name) as standby:
            loads = [asyncio.ensure_future(_send(sender, name)) for sender in senders]
            await asyncio.sleep(min(2.0, SECONDS))
            return await _kill(client, leader, standby, name, loads)


async def _kill(
    client: Client, leader: Served, standby: Database, name: str, loads: Sequence[asyncio.Future[None]]
) -> tuple[float, float]:
    began = time.perf_counter()
    leader.kill()
    over = asyncio.ensure_future(_session_over(client, name))
    while True:
        try:
            await standby.execute(INSERT, ("after",))
            break
        except NotLeader:
            await asyncio.sleep(_POLL_S)
    total = time.perf_counter() - began
    await asyncio.gather(*loads, return_exceptions=True)
    return min(await over - began, total), total


async def _send(sender: Any, name: str) -> None:
    while True:
        await sender.execute(f"default/{name}", INSERT, text())


async def _session_over(client: Client, name: str) -> float:
    """Return the time at which the killed leader's lease of the log has ended."""
    ns = client.namespace()
    killed = (await ns.info(name)).writer
    while True:
        info = await ns.info(name)
        if info.writer_gone or info.writer != killed:
            return time.perf_counter()
        await asyncio.sleep(_POLL_S)


def idle_writer() -> Figures:
    return inside(_idle_writer)


def take_over() -> Figures:
    return inside(_killed_leaders)


__all__ = ["idle_writer", "take_over"]
