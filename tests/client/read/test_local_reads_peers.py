"""Bulk reads from files where the bookie is of another kind: it names no places, hangs, hangs up, or lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.local_reads_kit import (
    ALWAYS,
    Files,
    PendingRequest,
    leaving_nothing,
    recording,
)
from tests.support.readable_bookie import ReadableBookie, readable
from tests.support.scripted_bookie import NET

from buckram.cluster import Client, connect
from buckram.config import ClientConfig
from buckram.core.wire.located import FileExtent, Located
from buckram.core.wire.messages import BatchRead
from buckram.core.wire.server_protocol import Incoming
from buckram.core.wire.v2 import located_reply
from buckram.runtime.disk.neighbours import identity_of

asked = pytest.fixture(recording)
nothing_is_left = pytest.fixture(autouse=True)(leaving_nothing)


@asynccontextmanager
async def scripted_reading(
    payloads: Sequence[bytes], config: ClientConfig = ALWAYS
) -> AsyncIterator[tuple[list[ReadableBookie], Client, int, Files]]:
    async with readable(3, net=replace(NET, request_timeout_s=300.0)) as (c, writing):
        async with writing.create() as writer:
            await writer.append_many(payloads)
        files = Files()
        net = replace(NET, request_timeout_s=300.0)
        runtime = replace(c.runtime, files=files)
        async with connect(c.store, config=config, net=net, runtime=runtime) as client:
            yield c.all, client, writer.ledger_id, files


PAYLOADS = [b"payload %d" % number for number in range(200)]


async def test_a_bookie_that_knows_no_places_answers_with_entries(asked: PendingRequest) -> None:
    async with scripted_reading(PAYLOADS) as (_, client, ledger, files), client.open(ledger) as reader:
        assert await reader.read_payloads(0, 199) == PAYLOADS
        assert (len(asked), asked.located, files.opened) == (1, [], [])


async def test_a_bookie_that_hangs_up_on_batch_reads_is_left_alone(asked: PendingRequest) -> None:
    async with scripted_reading(PAYLOADS) as (bookies, client, ledger, _), client.open(ledger) as reader:
        for bookie in bookies:
            bookie.batches = False
        for _ in range(3):
            assert await reader.read_payloads(0, 199) == PAYLOADS
        known = len(asked)
        for _ in range(10):
            assert await reader.read_payloads(0, 199) == PAYLOADS
        assert len(asked) == known


async def test_a_bookie_that_hangs_is_waited_for_as_in_any_read(asked: PendingRequest) -> None:
    config = replace(ALWAYS, speculative_read_ms=20.0)
    async with scripted_reading(PAYLOADS, config) as (bookies, client, ledger, _), client.open(ledger) as reader:
        for bookie in bookies:
            bookie.hang = lambda request: isinstance(request, BatchRead) and request.located
        async with asyncio.timeout(100):
            assert await reader.read_payloads(0, 199) == PAYLOADS
        assert asked


def lies(directory: str, identity: str, size: int) -> Iterator[Located]:
    whole = FileExtent("log-1", 0, size, 0, 0, 200)
    for extents in (
        [whole._replace(entries=0)],
        [whole._replace(first=1)],
        [whole._replace(entries=201)],
        [whole._replace(entries=2**62)],
        [whole._replace(skip=2**62)],
        [whole._replace(skip=1)],
        [whole._replace(name="\0")],
        [whole._replace(name="\ud800")],
        [whole._replace(length=2**62)],
        [whole._replace(length=0)],
        [whole._replace(offset=2**63 - 1)],
        [whole, whole],
        [whole._replace(entries=100), whole._replace(first=0, entries=100)],
        [whole._replace(entries=100), whole._replace(first=100, skip=100, entries=0)],
    ):
        yield Located(directory, identity, extents)
    yield Located("\0", identity, [whole])


async def test_whatever_a_bookie_names_the_entries_are_right(tmp_path: Path, asked: PendingRequest) -> None:
    async with scripted_reading(PAYLOADS) as (bookies, client, ledger, files), client.open(ledger) as reader:
        stored = [bookies[0].entries[ledger][number] for number in range(200)]
        frames = b"".join((24 + len(one)).to_bytes(4, "big") + bytes(24) + one for one in stored)
        (tmp_path / "log-1").write_bytes(frames)
        identity = identity_of(tmp_path)
        said: list[Located] = []

        def serving(bookie: ReadableBookie) -> None:
            serve = bookie.serve

            def placed(item: Incoming, transport: asyncio.Transport) -> None:
                if isinstance(item.request, BatchRead) and item.request.located:
                    transport.write(located_reply(item.context, said[-1]))
                else:
                    serve(item, transport)

            bookie.serve = placed  # type: ignore[method-assign]  # one bookie's alone

        for bookie in bookies:
            serving(bookie)
        said.append(Located(str(tmp_path), identity, [FileExtent("log-1", 0, len(frames), 0, 0, 200)]))
        assert await reader.read_payloads(0, 199) == PAYLOADS
        assert files.bytes == len(frames)
        # The bookie has the end in memory.
        part = FileExtent("log-1", 0, sum(28 + len(one) for one in stored[:50]), 0, 0, 50)
        said.append(Located(str(tmp_path), identity, [part]))
        before, served = files.bytes, len(asked)
        assert await reader.read_payloads(0, 199) == PAYLOADS
        assert files.bytes - before == part.length
        assert len(asked) == served + 2
        served = sum(len(bookie.requests) for bookie in bookies)
        for lie in lies(str(tmp_path), identity, len(frames)):
            said.append(lie)
            client.services.remote_bookies.clear()
            async with asyncio.timeout(100):
                assert await reader.read_payloads(0, 199) == PAYLOADS, lie
                assert await reader.read_payloads(0, 98) == PAYLOADS[:99], lie
        assert sum(len(bookie.requests) for bookie in bookies) > served
