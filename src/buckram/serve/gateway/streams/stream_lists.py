"""Lists of streams that contain only what the client may see, and do not reveal the others by name or by position.

Not here: objects (`object_lists.py`).
"""

from __future__ import annotations

from typing import Any

from buckram.core.streams.external.history import stream_of_directory
from buckram.core.streams.metadata.head import Segment
from buckram.namespace import Namespace
from buckram.serve.gateway.shared.operations import Ask
from buckram.serve.json_views.streams import info_json, segment_json
from buckram.streams.info import StreamInfo

_PAGE = 1000
"""Names of streams read at a time for a client that may not see all."""


async def streams_seen(ask: Ask, namespace: Namespace, prefix: str = "") -> tuple[list[str], str | None]:
    """A page of the streams that may be read, and the name behind which it goes on: one of them, whatever else there
    is; None for the last page."""
    limit, after, found = ask.query["limit"], ask.query["after"] or "", list[str]()
    size = limit if ask.allowed.everything else _PAGE
    while len(found) < limit:
        names = await namespace.list(prefix=prefix, after=after, limit=size)
        found += [name for name in names if "read" in ask.allowed(f"{ask.path['namespace']}/{name}")]
        if len(names) < size and len(found) <= limit:
            return found, None
        after = names[-1] if names else after
    return found[:limit], found[limit - 1]


def stream_seen(ask: Ask, info: StreamInfo) -> dict[str, Any]:
    """Return the JSON of a stream for a client; the source of a fork is null unless the client may see it."""
    shown = info_json(info)
    if info.fork is not None and not ask.sees(info.fork.source):
        shown["fork"] = {**shown["fork"], "source": None}
    return shown


def segment_seen(ask: Ask, row: Segment) -> dict[str, Any]:
    """Return the JSON of a segment for a client. A fork's segment lacks its location and digest unless the client may
    see the source, whose name they contain.
    """
    shown = segment_json(row)
    of = stream_of_directory(shown.get("location", ""))
    if of and not ask.sees(of):
        del shown["location"], shown["digest"]
    return shown
