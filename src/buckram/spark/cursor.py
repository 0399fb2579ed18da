"""The durable cursor of a streaming query: the source moves it with each batch, a listener past the last one.

Spark tells the source of a batch when it plans the next, so never of the last; the listener hears of every completed
batch in the driver program. Both only move it up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from buckram.client.client import Client
from buckram.core.streams.names import stream_name
from buckram.errors import BuckramError, CursorMoved, NoSuchStream
from buckram.spark.clients import connection
from buckram.spark.gathering import in_order
from buckram.streams.read.cursors import Cursor

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger("buckram.spark")


async def advance(client: Client, cursor: str, offsets: Mapping[str, int]) -> None:
    """Move the cursor of each stream up to its offset. One that is further stays, a stream that is gone is passed over.
    MetadataUnavailable."""
    store = client.namespace().store

    async def move(stream: str, offset: int) -> None:
        try:
            await Cursor(store, stream_name(stream), cursor, client.services.runtime.clock).move(offset)
        except CursorMoved as further:
            log.debug("%s", further)
        except NoSuchStream as missing:
            log.info("cursor %s: %s", cursor, missing)

    await in_order([partial(move, stream, offset) for stream, offset in offsets.items()])


class Follower:
    """Moves a cursor after a query; asks the store for those streams only of which there is news."""

    def __init__(self, uri: str, cursor: str) -> None:
        self._uri, self._cursor = uri, cursor
        self._known: dict[str, int] = {}

    def move(self, offsets: Mapping[str, int]) -> None:
        """Up to `offsets`. What may pass is logged: the next batch moves it further, and no query fails for its lag."""
        news = {stream: offset for stream, offset in offsets.items() if self._known.get(stream, -1) < offset}
        try:
            connection(self._uri).run(lambda client: advance(client, self._cursor, news))
        except BuckramError as error:
            if not error.retryable:
                raise
            log.warning("cursor %s was not moved: %s", self._cursor, error)
        else:
            self._known |= news


def cursor_moves(end_offset: str | None) -> tuple[str, str, dict[str, int]] | None:
    """(cluster, cursor, offsets) of a source's end offset as Spark reports it; None where it is not ours."""
    try:
        raw: Any = json.loads(end_offset or "")
    except ValueError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("cursor"), str) or not isinstance(raw.get("cluster"), str):
        return None
    return raw["cluster"], raw["cursor"], {name: at for name, at in raw.items() if "/" in name and type(at) is int}


class CursorListener(StreamingQueryListener):
    """Moves the cursors of all streaming queries of a session that have one. Trouble is logged: a query does not fail
    because its lag is not up to date."""

    def __init__(self) -> None:
        self._followers: dict[tuple[str, str, str], Follower] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            moves = cursor_moves(source.endOffset)
            if moves is None:
                continue
            uri, cursor, offsets = moves
            # One a run: a restarted query may have been sent back.
            follower = self._followers.setdefault((str(event.progress.runId), uri, cursor), Follower(uri, cursor))
            try:
                follower.move(offsets)
            except BuckramError as error:
                log.warning("cursor %s was not moved: %s", cursor, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its last progress came before."""
        for key in [key for key in self._followers if key[0] == str(event.runId)]:
            del self._followers[key]
