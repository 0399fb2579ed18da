"""Mirroring: what a mirror has beside its records is kept as in the source, and so are the grants of its namespace.

Of a stream these are settings, truncation, cursors, snapshots of a machine, and the progress of the copy. Grants and
denials of a mirrored namespace become those of the source, also if the source revokes one; patterns for several
namespaces, tokens, keys and revoked tokens belong to one cluster and stay as they are. Not here: records, producers and
transactions (`replication/stream_copy.py`), the settings that are about one cluster
(`core/streams/metadata/mirrors.py`), what grants allow (`core/security/acl.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from buckram.core.streams.metadata.changes import HeadStep, marked, mirrored, truncated
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import mirrored_settings
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.positions import PositionMark
from buckram.errors import BuckramError, CursorMoved, NoSuchCursor
from buckram.metadata.records.security import SecurityStore
from buckram.replication.lag import MirrorProgress, write_progress
from buckram.replication.sides import Side
from buckram.replication.snapshot_copy import SnapshotCopy
from buckram.runtime.net.pace import Pace
from buckram.streams.read.cursors import Cursor, cursor_positions
from buckram.streams.read.locate import known_end

EVERY_S = 1.0
"""Interval at which settings and truncation are looked at, and progress is written down, seconds."""
_CURSORS_EVERY = 5
_ASKED_EVERY = 10
"""Number of passes after which the source of a mirror at which nothing moves is asked for its end."""
TOLD_EVERY_US = 300_000_000
"""Interval at which a mirror's progress is written down even if nothing has changed, microseconds, as a sign of life of
the replication.
"""
_PAGE = 1000
_log = logging.getLogger("buckram.replication")


class Mirroring:
    """The parts of one mirror beside its records, kept as in the source."""

    def __init__(
        self,
        source: Side,
        target: Side,
        name: StreamName,
        into: StreamName,
        uid: str,
        mirror: Head,
        pace: Pace,
        position: Callable[[], PositionMark | None],
    ) -> None:
        """`uid`: that of the stream `name` in the source; `mirror`: the head of the mirror `into`; `position`: returns
        the position of the copy, None if that is in the head.
        """
        self._position = position
        self._source, self._target, self._name, self._into = source, target, name, into
        self._uid, self._mirror_uid = uid, mirror.uid
        self._snapshots: SnapshotCopy | None = None
        if mirror.snapshots is not None:
            self._snapshots = SnapshotCopy(source, target, into, uid, mirror.uid, pace)
        self._cursors: dict[str, int] = {}
        """Offsets at which the mirror's cursors were last put, by name."""
        self._settled: tuple[object, object, int] | None = None
        self._said: MirrorProgress | None = None
        self._told = 0
        self._seen: tuple[Head, int] | None = None
        self._quiet = 0
        self._trouble = ""

    async def follow(self, head: Callable[[], Head], copied: Callable[[], int]) -> None:
        """Keep it up to date until it is cancelled. What fails is tried again."""
        passes = 0
        while True:
            try:
                await self._pass(head(), copied(), cursors=passes % _CURSORS_EVERY == 0 or bool(self._trouble))
                self._trouble = ""
            except BuckramError as error:
                if str(error) != self._trouble:
                    _log.warning("mirror %s: %s", self._name, error)
                self._trouble = str(error)
            passes += 1
            await asyncio.sleep(EVERY_S)

    async def once(self, head: Head, copied: int) -> None:
        """Bring it up to date now. Raises the errors of changing the mirror."""
        await self._pass(head, copied, cursors=True)

    async def _pass(self, head: Head, copied: int, *, cursors: bool) -> None:
        earliest = min(head.earliest, copied)
        settled = (head.policy, head.properties, earliest)
        if settled != self._settled:
            await self._settle(head, earliest)
            self._settled = settled
        if cursors:
            await self._move_cursors(copied)
        await self._say(head, copied)
        if cursors and self._snapshots is not None:
            await self._snapshots.once(head, copied)

    async def _settle(self, head: Head, earliest: int) -> None:
        name, mark = str(self._into), self._position()

        def change(mirror: Head) -> HeadStep | None:
            policy = mirrored_settings(head.policy, mirror.policy)
            step = mirrored(name, mirror, self._uid, policy, head.properties, mirror.transactions)
            after = mirror if step is None else step.head
            cut = truncated(name, after, earliest, max(earliest, after.end)) if earliest > after.earliest else None
            if cut is None:
                return step
            return marked(name, cut.head, self._uid, mark or cut.head.mark) or cut

        await self._target.streams.change(self._into, change, uid=self._mirror_uid)

    async def _move_cursors(self, copied: int) -> None:
        """Put the mirror's cursors where those of the source are, as far as the records are there."""
        after = ""
        clock = self._target.client.services.runtime.clock
        head = (await self._source.streams.read(self._name)).head
        while page := await cursor_positions(self._source.streams, head, after, _PAGE):
            after = page[-1].name
            for cursor in page:
                offset = min(cursor.offset, copied)
                if self._cursors.get(cursor.name) == offset:
                    continue
                with suppress(CursorMoved, NoSuchCursor):  # A reader of the mirror moved it further, or deleted it.
                    await Cursor(self._target.streams, self._into, cursor.name, clock).move(offset)
                self._cursors[cursor.name] = offset

    async def _say(self, head: Head, copied: int) -> None:
        """Write down the progress of the copy, for `replicate status`, and for a promotion without the source."""
        if (head, copied) == self._seen and self._quiet < _ASKED_EVERY:
            self._quiet += 1
            return
        self._seen, self._quiet = (head, copied), 0
        source_end = await known_end(self._source.client, self._name, head)
        said = MirrorProgress(max(source_end, copied), copied, 0)
        now = self._source.now()
        if said != self._said or now - self._told >= TOLD_EVERY_US:
            self._told = now
            await write_progress(self._target, self._mirror_uid, said._replace(time=now))
            self._said = said


# -- grants -----------------------------------------------------------------------------------------------


async def mirror_grants(source: Side, target: Side, namespace: str) -> None:
    """Give the target the grants and denials that the source has for the namespace.

    Raises MalformedRecord, MetadataUnavailable, and InvalidArgument for denials if a bookie of the target does not know
    denials.
    """
    wanted = (await SecurityStore(source.client.services.store).acl()).of_namespace(namespace)
    store = SecurityStore(target.client.services.store)
    if (await store.acl()).of_namespace(namespace) != wanted:
        await store.change_acl(lambda acl: acl.with_namespace(namespace, wanted))
