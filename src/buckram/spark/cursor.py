"""The durable cursor of a streaming query: the source moves it with each batch, a listener past the last one.

Spark tells the source of a batch when it plans the next, so never of the last; the listener hears of every completed
batch in the driver program. Both only move it up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from buckram.client.client import Client
from buckram.core.stream_errors import CursorMoved, NoSuchStream
from buckram.core.stream_names import stream_name
from buckram.errors import BuckramError
from buckram.spark.clients import connection
from buckram.streams.cursors import Cursor

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger("buckram.spark")


async def advance(client: Client, cursor: str, offsets: Mapping[str, int]) -> None:
    """Move the cursor of each stream up to its offset; one that is further stays. NoSuchStream, MetadataUnavailable."""
    for stream, offset in offsets.items():
        name = stream_name(stream)
        store, clock = client.namespace(name.namespace).store, client.services.runtime.clock
        try:
            await Cursor(store, name, cursor, clock).move(offset)
        except CursorMoved as further:
            log.debug("%s", further)


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

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            moves = cursor_moves(source.endOffset)
            if moves is None:
                continue
            uri, cursor, offsets = moves
            try:
                connection(uri).run(lambda client, c=cursor, o=offsets: advance(client, c, o))  # type: ignore[misc]
            except NoSuchStream as missing:
                log.info("cursor %s: %s", cursor, missing)
            except BuckramError as error:
                log.warning("cursor %s was not moved: %s", cursor, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its last progress came before."""
