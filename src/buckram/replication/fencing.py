"""Fencing one side of a replication: streams change hands, so that only writers whom their new marks allow can write.

The present writer is out: the stream's epoch grows, and an open segment is fenced and sealed. Not here: what the marks
allow (`core/streams/metadata/mirrors.py`), when a side is fenced (`replication/promotion.py`, `replication/run.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from buckram.core.streams.metadata.changes import HeadStep, LiveMoved, handed_over
from buckram.core.streams.metadata.head import Head, Mirror, Summary
from buckram.core.streams.metadata.mirrors import MIRROR, SUPERSEDED
from buckram.core.streams.names import StreamName
from buckram.core.streams.replication_links import Link
from buckram.errors import NoSuchStream
from buckram.replication.sides import Side, put_link, stream_names
from buckram.streams.maintain.delete import delete_incomplete
from buckram.streams.shared.metadata import head_retries
from buckram.streams.shared.recovery import recover_segment
from buckram.types import LedgerId


async def hand_over(side: Side, name: StreamName, head: Head, mark: Mirror) -> Head:
    """Put a mark on a stream, fence its writer, and return the head, all of whose segments are sealed.

    Raises NoSuchStream if `head` belongs to an earlier stream of that name, RecoveryFailed if too few bookies answer to
    fence its writer, MetadataUnavailable.
    """
    retries = head_retries()
    while True:
        present = (await side.streams.read(name)).head
        live: tuple[LedgerId, Summary] | None = None
        if present.open_segment is not None:
            ledger = present.open_segment.ledger
            live = ledger, await recover_segment(side.client, name, present.uid, ledger)
        try:
            return await side.streams.change(name, partial(_handing, str(name), mark=mark, live=live), uid=head.uid)
        except LiveMoved as error:
            await retries.wait(error)


def _handing(name: str, head: Head, *, mark: Mirror, live: tuple[LedgerId, Summary] | None) -> HeadStep | None:
    return handed_over(name, head, mark, live)


async def supersede(side: Side, namespace: str, link: Link) -> list[str]:
    """Take the writers of a namespace away, because the cluster that `link` names was promoted.

    Returns the streams that were fenced now. From then on they take no records. It may be stopped and repeated.
    """
    fenced: list[str] = []
    if (await put_link(side, namespace, replace(link, time=side.now()))).state != SUPERSEDED:
        return fenced  # It was reconciled since.
    async for name in stream_names(side, namespace):
        try:
            if not link.has(name.stream):
                continue
            head = (await side.streams.read(name)).head
            if head.deleting:
                continue
            if head.incomplete:
                # A fork takes no mark while it is being made. Its maker gets an error and forks again, after the fence.
                await delete_incomplete(side.client, side.streams, name, head.uid)
                head = (await side.streams.read(name)).head
            mark = head.mirror
            if mark is not None and (mark.epoch >= link.epoch or (mark.state, mark.cluster) == (MIRROR, side.cluster)):
                continue  # It was fenced, or records are being kept aside in it.
            uid = mark.uid if mark is not None else ""
            await hand_over(side, name, head, Mirror(SUPERSEDED, link.cluster, uid, link.epoch))
            fenced.append(str(name))
        except NoSuchStream:
            continue
    return fenced
