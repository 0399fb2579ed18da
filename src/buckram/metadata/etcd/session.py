"""`EtcdSession`: a lease that this process keeps alive, and the fence that ends what it sent before.

Only etcd decides that the session is over, never this process's own clock: an answer to a keep-alive without time to
live, or a lease that is not found. The lease's own key is the fence: every transaction of the session is bound to its
revision, so a change whose answer was lost cannot happen any more once the key was written again.
"""

from __future__ import annotations

import asyncio
import logging

from buckram.errors import MetadataError, MetadataUnavailable
from buckram.metadata.etcd.client import CLOSED, EtcdClient, EtcdRefused, translate
from buckram.metadata.etcd.key_records import EtcdKeySpace, coded
from buckram.seams import Notify

_log = logging.getLogger("buckram.etcd")
_CLOSE_S = 2.0
_PARTS = 4
"""Number of keep-alives within one time to live."""


class EtcdSession:
    """The session of one store. It begins when it is first needed, and anew after a loss.

    `lost` is called on the loop after each loss; the session that follows begins with the next change.
    """

    def __init__(self, client: EtcdClient, places: EtcdKeySpace, ttl_s: int, lost: Notify) -> None:
        self.ttl_s = ttl_s
        self.lease = 0
        """Id of the lease; 0 while there is no session."""
        self.fence = 0
        """The revision that transactions are bound to; 0 after a change whose answer was lost."""
        self._client, self._places, self._lost = client, places, lost
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    async def ensure(self) -> None:
        """Make sure that a session exists, and that nothing which it sent earlier without an answer can happen any
        more.
        """
        while not (self.lease and self.fence):
            async with self._lock:
                if self._closed:
                    raise MetadataUnavailable(CLOSED)
                if not self.lease:
                    await self._begin()
                elif not self.fence:
                    await self.renew_fence()

    @property
    def in_doubt(self) -> bool:
        return self.lease != 0 and self.fence == 0

    def doubt(self, fence: int) -> None:
        """Note that a change bound to this fence was sent, and got no answer."""
        if self.fence == fence:
            self.fence = 0

    def seen(self, lease: int, fence: int, revision: int) -> None:
        """Note that a transaction bound to `fence` found the session's key at this revision, 0 if it is gone."""
        if not revision:
            self.end(lease)
        elif lease == self.lease and self.fence == fence:
            self.fence = revision

    async def _begin(self) -> None:
        # A grant whose answer is lost ends by itself, so it may be repeated.
        answer = await self._client.call_translated("lease/grant", {"TTL": str(self.ttl_s)}, "a session", repeat=True)
        self.lease = int(answer["ID"])
        if self._keeper is not None:
            self._keeper.cancel()
        self._keeper = asyncio.create_task(self._keep(self.lease), name="etcd session")
        await self.renew_fence()

    async def renew_fence(self) -> None:
        """Write the session's key again: changes that are bound to its older revisions are void."""
        lease = self.lease
        body = {"key": coded(self._places.session(lease)), "value": "", "lease": str(lease)}
        try:
            answer = await self._client.call("kv/put", body, "a session", repeat=True)
        except EtcdRefused as refused:
            if refused.no_lease:
                self.end(lease)
                return
            raise translate(refused, "a session", self._client.hosts) from None
        if self.lease == lease:
            self.fence = int(answer["header"]["revision"])

    def end(self, lease: int) -> None:
        """End the session: etcd answered that this lease is over."""
        if lease != self.lease or self._closed:
            return
        _log.warning("session with etcd at %s was lost; a new one serves", self._client.hosts)
        self.lease = self.fence = 0
        self._lost()

    async def _keep(self, lease: int) -> None:
        """Keep the lease alive. While no server answers, it is unknown whether the session is alive."""
        away = False
        while self.lease == lease:
            await asyncio.sleep(self.ttl_s / _PARTS)
            try:
                answer = await self._client.call("lease/keepalive", {"ID": str(lease)}, "a session", repeat=True)
            except EtcdRefused as refused:
                if refused.no_lease:
                    self.end(lease)
                continue
            except MetadataError as error:
                if not away:
                    _log.warning("the session cannot be kept alive just now: %s", error)
                away = True
                continue
            if away:
                _log.info("etcd at %s answers again", self._client.hosts)
            away = False
            if int(answer.get("TTL", 0)) <= 0:
                self.end(lease)

    async def revoke(self, lease: int) -> None:
        """End a session, ours or that of a process that is dead; do nothing if it is over already."""
        try:
            await self._client.call("lease/revoke", {"ID": str(lease)}, "a session", repeat=True)
        except EtcdRefused as refused:
            if not refused.no_lease:
                raise translate(refused, "a session", self._client.hosts) from None

    async def close(self) -> None:
        """End the session; if etcd cannot be reached, it ends by itself after its time to live."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self.lease:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await self.revoke(self.lease)
            except (MetadataError, TimeoutError) as error:
                _log.info("the session ends by itself after %g s: %s", self.ttl_s, error)
        self.lease = self.fence = 0
