"""Readers of the ledgers that objects are in, kept for a while; one that could not be opened is opened anew."""

from __future__ import annotations

import asyncio

import pytest

from buckram.core.streams.names import StreamId, StreamName, owner_mark
from buckram.errors import NoSuchLedger
from buckram.state.objects.reading import ObjectReaders
from buckram.testing import cluster

INDEX = StreamName("shop", "buckram.objects")


async def test_a_reader_that_could_not_be_opened_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(bookies=1) as running, running.client() as client:
        async with client.create(ensemble=(1, 1, 1), custom_metadata=owner_mark(INDEX, "u1", "object")) as writer:
            await writer.append(b"found")
        readers = ObjectReaders(client, StreamId(INDEX, "u1"))
        with pytest.raises(NoSuchLedger):
            await readers.get(writer.ledger_id + 1)
        with monkeypatch.context() as patch:
            patch.setattr(client, "open", _no_descriptors)
            both = await asyncio.gather(
                readers.get(writer.ledger_id), readers.get(writer.ledger_id), return_exceptions=True
            )
        assert [str(one) for one in both] == ["[Errno 24] Too many open files"] * 2
        reader = await readers.get(writer.ledger_id)
        assert (await reader.get(0)).payload == b"found"
        assert await readers.get(writer.ledger_id) is reader
        await readers.close()


async def _no_descriptors(*_: object) -> None:
    raise OSError(24, "Too many open files")
