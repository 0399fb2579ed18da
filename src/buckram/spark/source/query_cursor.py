"""The durable cursor of a streaming query. The source moves it with each batch, a listener moves it past the last one.

Spark reports the end of a batch to the source when it plans the next batch, so it never reports the last one. The
listener runs in the driver program and gets every completed batch. Both only move the cursor up. Not here: how a cursor
is stored (`streams/read/cursors.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from buckram.cluster import Client
from buckram.core.streams.names import stream_name
from buckram.errors import BuckramError, CursorMoved, NoSuchStream
from buckram.spark.shared.bounded_gather import run_in_order
from buckram.spark.shared.clients import connection
from buckram.spark.shared.cluster_uri import is_vouched
from buckram.spark.shared.rollback_detection import VOUCHED
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
    """Move the cursor of each stream up to its offset. Raises MetadataUnavailable.

    A cursor that is further stays where it is, and a stream that does not exist any more is skipped.
    """
    store = client.namespace().store

    async def move(stream: str, offset: int) -> None:
        try:
            await Cursor(store, stream_name(stream), cursor, client.services.runtime.clock).move(offset)
        except CursorMoved as further:
            log.debug("%s", further)
        except NoSuchStream as missing:
            log.info("cursor %s: %s", cursor, missing)

    await run_in_order([partial(move, stream, offset) for stream, offset in offsets.items()])


class CursorFollower:
    """Moves a cursor behind a query, and writes only for streams whose offset has changed."""

    def __init__(self, uri: str, cursor: str) -> None:
        self._uri, self._cursor = uri, cursor
        self._known: dict[str, int] = {}

    def move(self, offsets: Mapping[str, int]) -> None:
        """Move the cursor up to `offsets`. A retryable error is only logged, because the next batch moves it again."""
        news = {stream: offset for stream, offset in offsets.items() if self._known.get(stream, -1) < offset}
        try:
            connection(self._uri).run(lambda client: advance(client, self._cursor, news))
        except BuckramError as error:
            if not error.retryable:
                raise
            log.warning("cursor %s was not moved: %s", self._cursor, error)
        else:
            self._known |= news


class CursorMove(NamedTuple):
    """Where a completed batch moves a cursor: the cluster's metadata URI, the cursor's name, an offset per stream."""

    cluster: str
    cursor: str
    offsets: dict[str, int]


def cursor_move(end_offset: str | None) -> CursorMove | None:
    """Parse a source's end offset as Spark reports it; None if the source is another one or has no cursor, or if nobody
    with a credential of this process vouches for the cluster: the offset may come from a checkpoint.
    """
    try:
        raw: Any = json.loads(end_offset or "")
    except ValueError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("cursor"), str) or not isinstance(raw.get("cluster"), str):
        return None
    offsets = {name: at for name, at in raw.items() if "/" in name and type(at) is int}
    found = CursorMove(raw["cluster"], raw["cursor"], offsets)
    if is_vouched(raw.get(VOUCHED), found.cluster, found.cursor, found.offsets):
        return found
    log.warning(
        "cursor %s stays a batch behind: %s is in a checkpoint, and no query with this program's credential wrote it; "
        "let both have the same BUCKRAM_TOKEN, or name the cluster in BUCKRAM_METADATA",
        found.cursor,
        found.cluster,
    )
    return None


class CursorListener(StreamingQueryListener):
    """Moves the cursors of a session's streaming queries. Errors are logged, as no query has to fail for its cursor."""

    def __init__(self) -> None:
        self._followers: dict[tuple[str, str, str], CursorFollower] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the query has read nothing yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            move = cursor_move(source.endOffset)
            if move is None:
                continue
            uri, cursor, offsets = move
            # Each run has its own follower, because a restarted query may begin further back.
            follower = self._followers.setdefault((str(event.progress.runId), uri, cursor), CursorFollower(uri, cursor))
            try:
                follower.move(offsets)
            except BuckramError as error:
                log.warning("cursor %s was not moved: %s", cursor, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the query has read nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query; its last progress was reported before."""
        for key in [key for key in self._followers if key[0] == str(event.runId)]:
            del self._followers[key]
