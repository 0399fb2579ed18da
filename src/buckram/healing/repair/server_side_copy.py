"""Copies that the target makes itself, from the files of a bookie on its machine: no entry passes this process.

This is only an optimisation: wherever it ends, the copy goes on as if it did not exist
(`healing/repair/fragment_copy.py`). The target checks each entry and reports what is durable. Not here: its side
(`bookie/service/entries/pulls.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from buckram.client.read.local import LocalReads, groups_of
from buckram.client.read.replicas import ask
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.wire.located import Located
from buckram.core.wire.messages import Pull, PullReply
from buckram.core.wire.pulls import MAX_PULL_BYTES
from buckram.errors import Code, ProtocolError
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, DigestType, EntryId, LedgerId

APART_S = 60.0
"""Seconds for which a target that cannot read a neighbour's files is not asked again."""
_ONCE_BYTES, AHEAD_BYTES, _ALL_AHEAD_BYTES = 1024 * 1024, 8 * 1024 * 1024, 64 * 1024 * 1024
_PACED_ONCE_BYTES, PACED_AHEAD_BYTES, _PACED_ALL_AHEAD_BYTES = 256 * 1024, 1024 * 1024, 8 * 1024 * 1024
"""Maximum bytes of one request, of all unanswered requests of one copy, and of all copies together; this line applies
with a speed limit, the one above without.
"""
_THROUGH_AT_ONCE = 8


class CopyLimits:
    """Limits that all copies of one process share."""

    def __init__(self) -> None:
        self.through = asyncio.Semaphore(_THROUGH_AT_ONCE)
        """Semaphore for copies whose entries pass this process, which has them in memory."""
        self.pulled = 0
        """Number of copies that bookies are making themselves now."""

    def ahead_bytes(self, *, paced: bool) -> int:
        """Return the maximum bytes of unanswered requests of one such copy. `paced`: there is a speed limit."""
        once, most, everything = _ONCE_BYTES, AHEAD_BYTES, _ALL_AHEAD_BYTES
        if paced:
            once, most, everything = _PACED_ONCE_BYTES, PACED_AHEAD_BYTES, _PACED_ALL_AHEAD_BYTES
        return max(once, min(most, everything // max(1, self.pulled)))


class _Asked(NamedTuple):
    size: int
    answer: asyncio.Task[PullReply | None]


class _Window:
    """The requests that are not answered yet, in the order of their entries, and the progress of the copy."""

    def __init__(self, first: EntryId) -> None:
        self.first, self.copied_bytes, self.whole = first, 0, True
        """`first`: the first entry that is not copied; `copied_bytes`: stored bytes before it; `whole`: nothing was
        left out so far.
        """
        self._asked = deque[_Asked]()
        self._bytes = 0

    def sent(self, size: int, answer: asyncio.Task[PullReply | None]) -> None:
        self._asked.append(_Asked(size, answer))
        self._bytes += size

    async def down_to(self, most: int) -> None:
        """Wait until at most so many bytes are requested and unanswered, or a request was not carried out as
        a whole.
        """
        while self.whole and self._asked and (self._bytes > most or self._asked[0].answer.done()):
            size, answer = self._asked.popleft()
            self._bytes -= size
            reply = await answer
            if reply is not None:
                self.first += reply.count
                self.copied_bytes += reply.bytes
            self.whole = reply is not None and reply.code is Code.OK

    def cancel(self) -> None:
        for one in self._asked:
            one.answer.cancel()


class Pulls:
    """Copies of one ledger that bookies make themselves. `pace`: the limit that all copies share."""

    def __init__(
        self,
        services: Services,
        ledger: LedgerId,
        digest: Digest,
        local: LocalReads,
        scope: TaskScope,
        pace: Pace,
        limits: CopyLimits,
    ) -> None:
        self._services, self._ledger, self._digest = services, ledger, digest
        self._local, self._scope, self._pace, self._limits = local, scope, pace, limits

    async def copy(
        self, target: BookieId, holders: Sequence[BookieId], first: EntryId, last: EntryId
    ) -> tuple[EntryId, int]:
        """Have the target copy from `first` on, as far as possible; return where it ended, and the stored
        bytes before.
        """
        source = self._local.neighbour(holders)
        if source is None or not self._may(source, target):
            return first, 0
        window = _Window(first)
        self._limits.pulled += 1
        try:
            async with aclosing(self._local.places(source, first, last)) as places:
                async for located in places:
                    if not await self._send(source, target, located, last, window):
                        break
            await window.down_to(0)
        except TimeoutError:
            self._services.bookies.report_slow(source)
            await window.down_to(0)
        finally:
            self._limits.pulled -= 1
            window.cancel()
        return window.first, window.copied_bytes

    def _may(self, source: BookieId, target: BookieId) -> bool:
        """Return whether the target is worth asking.

        It has to be one of ours, know the digest without the ledger's password (CRC32, CRC32C), and not have failed
        lately.
        """
        if self._digest.kind not in (DigestType.CRC32, DigestType.CRC32C):
            return False
        if self._services.bookies.incarnation(target) is None:
            return False  # an Apache bookie, or one never seen
        until = self._services.apart.get((source, target))
        return until is None or until <= asyncio.get_running_loop().time()

    async def _send(self, source: BookieId, target: BookieId, located: Located, last: EntryId, window: _Window) -> bool:
        """Send requests for all entries that are located; return whether that was possible and nothing was left out so
        far.
        """
        paced = self._pace.limited
        once = _PACED_ONCE_BYTES if paced else _ONCE_BYTES
        sent = 0
        for group in groups_of(located.extents, once, MAX_PULL_BYTES):
            places, size = Located(located.directory, located.identity, group), sum(one.length for one in group)
            count = sum(one.entries for one in group)
            if group[0].first + count - 1 > last:
                return False  # the located group reaches beyond the last requested entry
            await self._pace.take(size)
            request = Pull(
                self._ledger, group[0].first, count, self._digest.key, self._digest.kind, source, places,
                self._digest.birth,
            )  # fmt: skip
            name = f"pull {self._ledger}"
            window.sent(size, self._scope.spawn(self._ask(target, request), name))
            sent += len(group)
            await window.down_to(self._limits.ahead_bytes(paced=paced))
            if not window.whole:
                return False
        return sent == len(located.extents)

    async def _ask(self, target: BookieId, request: Pull) -> PullReply | None:
        """Return the answer; None if there is none that can be believed."""
        reply = await ask(self._services.pool, target, request)
        apart = isinstance(reply, ProtocolError)
        if isinstance(reply, PullReply) and reply.count <= request.count:
            if not reply.count and reply.code is Code.BAD_REQUEST:
                apart = True
            elif reply.code is not Code.OK or reply.count == request.count:
                return reply
        if apart:
            self._services.apart[request.source, target] = asyncio.get_running_loop().time() + APART_S
        return None
