"""Counts anew what namespaces have: their bytes in this bookie's files, and, for all bookies, what the records say.

Ledgers that metadata does not know any more are nobody's, although their bytes may lie here for a while.
Not here: when this is done, and what came in since (`bookie/accounting/namespace_usage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from buckram.bookie.storage.store import Store
from buckram.core.security.namespace_rules import namespace_of_ledger
from buckram.core.streams.metadata.head import decode_head
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.names import OWNER_PURPOSE
from buckram.core.tenants.usage import Counts
from buckram.errors import BuckramError, MalformedRecord
from buckram.metadata.tree.key_operations import all_children, all_names
from buckram.seams import MetadataStore
from buckram.types import LedgerId, LedgerMetadata

_PAGE = 1000
APPLICATION = "application"
"""Key of a ledger's custom metadata in which Apache's clients, and others, name their application."""
MOST_APPLICATIONS, OTHER_APPLICATIONS = 20, "(others)"
"""Maximum number of applications that are counted by name in one namespace, and the name for the sum of the others."""
_BULK = b"bulk "


@dataclass(slots=True)
class _Counting:
    ledgers: int = 0
    streams: int = 0
    databases: int = 0
    applications: dict[str, int] = field(default_factory=dict)

    def done(self) -> Counts:
        """Return the counts, with only the largest applications by name: names come from the ledgers, and all counts
        share one key."""
        by = sorted(self.applications.items(), key=lambda one: -one[1])
        named = dict(by[:MOST_APPLICATIONS])
        if rest := by[MOST_APPLICATIONS:]:
            named[OTHER_APPLICATIONS] = named.get(OTHER_APPLICATIONS, 0) + sum(size for _, size in rest)
        return Counts(self.ledgers, self.streams, self.databases, named)


class Recounted(NamedTuple):
    """Bytes in this bookie's files by namespace; and what all namespaces have, if that was asked for."""

    stored: Mapping[str, int]
    counts: Mapping[str, Counts] | None


async def recount(
    store: Store, metadata: MetadataStore, *, everything: bool, before_bytes: Callable[[], None]
) -> Recounted:
    """Read all records, then the store's own sums. `before_bytes` is called between the two.

    Raises MetadataError, StoreError and OSError.
    """
    own = frozenset(await store.live_ledger_ids())
    kinds: dict[LedgerId, str] = {}
    found: dict[str, _Counting] = {}
    after = -1
    while page := await metadata.read_ledgers(after=after, limit=_PAGE):
        for ledger_id, record in page:
            if isinstance(record, MalformedRecord):
                continue
            namespace = namespace_of_ledger(record.metadata.custom_metadata)
            if ledger_id in own:
                kinds[ledger_id] = namespace
            if everything:
                _count_ledger(found.setdefault(namespace, _Counting()), record.metadata)
        after = page[-1][0]
    if everything:
        await _count_streams(metadata, found)
    before_bytes()
    stored = await store.bytes_by(kinds)
    return Recounted(stored, {name: one.done() for name, one in found.items()} if everything else None)


def _count_ledger(counting: _Counting, metadata: LedgerMetadata) -> None:
    counting.ledgers += 1
    name = application_of(metadata.custom_metadata)
    size = (metadata.length or 0) * metadata.write_quorum
    counting.applications[name] = counting.applications.get(name, 0) + size


def application_of(custom_metadata: Mapping[str, bytes]) -> str:
    """Return the application that made a ledger: from its custom metadata, or of a stream's bulk step; "" if neither
    names one."""
    said = custom_metadata.get(APPLICATION)
    if said is not None:
        return said.decode(errors="replace")[:100]
    purpose = custom_metadata.get(OWNER_PURPOSE, b"")
    if purpose.startswith(_BULK):
        return purpose.removeprefix(_BULK).decode(errors="replace").rpartition(" ")[0][:100]
    return ""


async def _count_streams(metadata: MetadataStore, found: dict[str, _Counting]) -> None:
    keys, heads = metadata.keys, f"{metadata.own}/streams/heads"
    async for namespace in all_names(keys, heads):
        counting = found.setdefault(namespace, _Counting())
        counting.streams, counting.databases = await streams_in(metadata, namespace)


async def streams_in(metadata: MetadataStore, namespace: str) -> tuple[int, int]:
    """Return the number of streams of a namespace, and how many of them are logs of databases. Raises MetadataError."""
    folder = f"{metadata.own}/streams/heads/{namespace}"
    streams = databases = 0
    async for name, value in all_children(metadata.keys, folder):
        streams += 1
        databases += is_database(f"{folder}/{name}", value.value)
    return streams, databases


def is_database(key: str, value: bytes) -> bool:
    """Return whether a stream's head is that of a database's log."""
    try:
        head = decode_head(key, value)
    except BuckramError:
        return False
    return purpose_of("", head) is Purpose.DATABASE
