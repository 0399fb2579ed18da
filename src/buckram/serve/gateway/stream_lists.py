"""Lists of streams that have what one may see, and nothing of what one may not: neither a name nor where it stands.

Not here: objects (`object_lists.py`).
"""

from __future__ import annotations

from typing import Any

from buckram.core.streams.head import Segment
from buckram.core.streams.history import stream_of_directory
from buckram.namespace import Namespace
from buckram.serve.gateway.operations import Ask
from buckram.serve.views.streams import info_json, segment_json
from buckram.streams.info import StreamInfo

_PAGE = 1000
"""So many names are looked at at a time by whoever may not see all of them."""


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
    """What is shown of a stream to who asks. A fork names its source to whoever may see that."""
    shown = info_json(info)
    if info.fork is not None and not ask.sees(info.fork.source):
        shown["fork"] = {**shown["fork"], "source": None}
    return shown


def segment_seen(ask: Ask, row: Segment) -> dict[str, Any]:
    """What is shown of a segment. Files of a fork's source are in a place that has its name."""
    shown = segment_json(row)
    of = stream_of_directory(shown.get("location", ""))
    if of and not ask.sees(of):
        del shown["location"], shown["digest"]
    return shown


__all__ = ["segment_seen", "stream_seen", "streams_seen"]
