"""StreamInfo: the state and settings of one stream at one moment, from its head.

Not here: lag and rates (`streams/read/lag.py`), how a stream is shown (`serve/json_views/streams.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Fork, Head, Transaction, WriterInfo
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.pickles import restore, state_of
from buckram.streams.maintain.truncate import is_lease_held
from buckram.streams.read.locate import known_end
from buckram.streams.shared.metadata import StreamStore

_FIELDS_0_2 = (
    "name", "uid", "created", "earliest", "end", "ended", "writer", "policy", "overrides", "properties",
    "last_append", "transactions", "segments", "writer_gone", "fork",
)  # fmt: skip
"""Fields of release 0.2.0, in their order then."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """State and settings of a stream at one moment. Times are in microseconds UTC."""

    name: str
    """Full name, NAMESPACE/STREAM."""
    uid: str
    """The unique id, which tells it from earlier streams of this name."""
    created: int
    """Time of its creation."""
    earliest: int
    """The first offset that can be read."""
    end: int
    """The offset after the last readable record."""
    ended: bool
    """True if it was marked as ended, so that no record can follow."""
    writer: WriterInfo | None
    """The writer that opened it and has not closed it; None if there is none."""
    policy: Policy
    """The settings in force: the stream's own, then the namespace's, then defaults."""
    overrides: Mapping[str, Any]
    """The stream's own settings."""
    properties: Mapping[str, str]
    """Names and values that the application has set."""
    last_append: int
    """The append time of the last record in its sealed segments."""
    transactions: Mapping[str, Transaction]
    """The newest bulk step of each application."""
    segments: int
    """The number of segments in the list, with dead ones that wait for deletion. It is too high by those that
    compaction has removed from older pages."""
    writer_gone: bool = False
    """True if `writer` has lost the lease without closing the stream: it died, or its metadata session expired."""
    purpose: Purpose = Purpose.RECORDS
    """Purpose of the stream; `core/streams/metadata/purposes.py` has the operations that each purpose allows."""
    fork: Fork | None = None
    """Origin of a fork: the source, and the offset below which the records are the source's. None for other streams."""

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self)

    def __setstate__(self, state: Any) -> None:
        restore(self, state, _FIELDS_0_2)


async def stream_info(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, of_namespace: Mapping[str, Any]
) -> StreamInfo:
    """Return the information in a head and its namespace's settings. NoSuchStream if it is being deleted or made."""
    check_usable(str(name), head)
    return StreamInfo(
        str(name),
        head.uid,
        head.created,
        head.earliest,
        await known_end(client, name, head),
        head.ended,
        head.writer,
        merged(of_namespace, head.policy),
        head.policy,
        head.properties,
        head.last_append,
        head.transactions,
        segments=len(head.tail) + max(head.paged - head.first, 0),
        writer_gone=head.writer is not None and not await is_lease_held(streams, head.uid),
        purpose=purpose_of(str(name), head),
        fork=head.fork,
    )
