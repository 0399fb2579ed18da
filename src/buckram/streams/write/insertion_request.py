"""Asking the writer that has a stream to list the ledgers of a bulk step between its segments, and waiting for it.

The question is an ephemeral key of the stream: it goes with the process that asks. Whatever happens, what counts is the
transaction in the head. Not here: what the writer does (`streams/write/insertion_answer.py`), publishing by oneself
(`write/bulk.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.metadata.insertions import Insertion, encode_insertion
from buckram.core.streams.names import StreamName
from buckram.errors import KeyExists, MetadataUnavailable, NoSuchKey, NoSuchStream, VersionConflict
from buckram.streams.shared.metadata import StreamStore, head_retries
from buckram.types import CheckVersion, Create

ANSWER_S = 30.0
"""Time that a bulk step waits for the writer, seconds."""
_PAUSE_S = 0.2

Published = Callable[[], Awaitable[Transaction | None]]
"""Returns what the step was published as, or None."""


async def ask_writer(
    streams: StreamStore, name: StreamName, uid: str, wanted: Insertion, published: Published, *, within_s: float
) -> Transaction | None:
    """Ask the writer, and return the transaction of the published step; None if it was not published.

    Then no answer came within `within_s` seconds, or the writer is gone or refused; another attempt to publish gets the
    reason.

    Raises NoSuchStream, MetadataUnavailable, and InvalidArgument for too many ledgers.
    """
    key, value = streams.layout.insertion(uid), encode_insertion(str(name), wanted)
    try:
        async with asyncio.timeout(within_s):
            await _asked(streams, name, uid, key, value)
            await _gone(streams, key, value)
    except TimeoutError:
        pass
    finally:
        # The key must not be there when another writer comes; a writer that is about to publish fails, or was first.
        await asyncio.shield(_withdrawn(streams, key, value))
    return await published()


async def _asked(streams: StreamStore, name: StreamName, uid: str, key: str, value: bytes) -> None:
    """Create the key, after waiting for that of another step. NoSuchStream if the stream is gone."""
    retries = head_retries()
    while True:
        try:
            at = await streams.read(name)
            if at.head.uid != uid:
                raise NoSuchStream(str(name), "was deleted and created anew")
            await streams.keys.multi(
                [CheckVersion(streams.layout.head(name), at.version), Create(key, value, ephemeral=True)]
            )
            return
        except VersionConflict as error:
            await retries.wait(error)  # The head has changed meanwhile.
        except MetadataUnavailable as error:
            await retries.wait(error)  # It may have been created all the same.
        except KeyExists:
            changed = asyncio.Event()
            with suppress(NoSuchKey):
                found = await streams.keys.get(key, changed.set)
                if found.value == value:
                    return
                await changed.wait()
            retries = head_retries()


async def _gone(streams: StreamStore, key: str, value: bytes) -> None:
    """Wait until the key is not there any more, or is that of another step."""
    while True:
        changed = asyncio.Event()
        try:
            if (await streams.keys.get(key, changed.set)).value != value:
                return
        except NoSuchKey:
            return
        except MetadataUnavailable:
            changed.set()
            await asyncio.sleep(_PAUSE_S)
        await changed.wait()


async def _withdrawn(streams: StreamStore, key: str, value: bytes) -> None:
    """Delete the key if it is ours."""
    retries = head_retries()
    while True:
        try:
            found = await streams.keys.get(key)
            if found.value == value:
                await streams.keys.delete(key, found.version)
            return
        except NoSuchKey:
            return
        except VersionConflict as error:
            await retries.wait(error)
        except MetadataUnavailable as error:
            await retries.wait(error)
