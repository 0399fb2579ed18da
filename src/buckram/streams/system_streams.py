"""Streams of the namespace `system`, in which processes of the cluster itself keep what they saw, each by bulk steps.

Not here: what stands in them (`cli/security/audit_writer.py`, `cli/planning/recording.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from buckram.client.ledger_client import LedgerClient
from buckram.core.security.acl import SERVERS
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.purposes import purpose_of
from buckram.core.streams.metadata.transactions import StepId
from buckram.core.streams.names import DEFAULT_NAMESPACE, stream_name
from buckram.core.streams.policy import merged
from buckram.errors import BuckramError, NamespaceExists, StreamExists
from buckram.streams.info import StreamInfo
from buckram.streams.namespace import StreamNamespace
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces
from buckram.streams.write.bulk import Bulk

RETENTION_S = 90 * 86_400.0
"""Default retention of the namespace, seconds; `buckram namespace set system` changes it."""


async def make_system_stream(client: LedgerClient, stream: str, retention_s: float | None = None) -> None:
    """Make the namespace and the stream where they are missing, whichever stream is the first. `retention_s` is the
    stream's own; None: the namespace's."""
    spaces, shape = Namespaces(StreamStore(client.services.store)), dict[str, Any]()
    if not (await spaces.get(DEFAULT_NAMESPACE)).fitted:  # else it is fitted like that one
        writable = len((await client.services.store.bookies()).writable)
        shape["ensemble"] = "3/3/2" if writable >= 3 else f"{max(writable, 1)}/{max(writable, 1)}/1"
    with suppress(NamespaceExists):
        await spaces.create(SERVERS, retention_s=RETENTION_S, **shape)
    own: dict[str, Any] = {} if retention_s is None else {"retention_s": retention_s}
    with suppress(StreamExists):
        await StreamNamespace(client, SERVERS).create(stream, **own)


async def append_in_one_step(
    client: LedgerClient, info: StreamInfo, application: str, values: Sequence[bytes], timestamps: Sequence[int]
) -> None:
    """Append records as one segment, as the step of `application` after the one that `info` knows.

    When it fails, its ledger is given up at once. Raises BuckramError, StaleTransaction where `info` is old.
    """
    newest = info.transactions.get(application)
    version = newest.version + 1 if newest is not None else 0
    name, streams = stream_name(info.name), StreamStore(client.services.store)
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    policy = merged((await Namespaces(streams).get(SERVERS)).policy, head.policy)
    owner = purpose_of(str(name), head)
    step = Bulk(client, streams, name, head, policy, StepId(application, version), owner)
    ledger = await step.create_ledger()
    try:
        await ledger.append_many(values, timestamps=timestamps)
        await step.publish([await ledger.close()])
    except BaseException:
        with suppress(BuckramError):
            await ledger.abandon()
            await step.abort([ledger.ledger_id])
        raise
