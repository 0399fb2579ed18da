"""`EtcdSession`: a lease that this process keeps alive, the fence that ends what it sent before, and watches.

Only etcd decides that the session is over, never this process's own clock: an answer to a keep-alive without time to
live, or a lease that is not found. The lease's own key is the fence: every transaction of the session is bound to its
revision, so a change whose answer was lost cannot happen any more once the key was written again.

Watches share one stream of events for each folder in which something is watched. A watch is set as of the revision that
was read with it, and fires for events behind that one; a stream that is cut is asked for again from where it was. So
nothing is missed in between. Where etcd has forgotten the events (compaction), all watches of the folder fire: whoever
set them reads again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
from typing import Any

from buckram.core.backoff import STORE_WATCH, Delays
from buckram.errors import BuckramError, ForkedClient, MalformedRecord, MetadataError, MetadataUnavailable
from buckram.metadata.etcd.client import CLOSED, EtcdClient, EtcdRefused, translate
from buckram.metadata.etcd.key_records import EtcdKeySpace, Range, coded
from buckram.metadata.tree.key_grammar import split
from buckram.seams import Deliver, Notify

_log = logging.getLogger("buckram.etcd")
_IDLE_S = 30.0
"""Seconds for which an unused stream is kept: most watches are set again at once."""
_PING_S = 3.0
Place = tuple[str, str]
"""Place of a watch: ("value" or "children", key)."""


class Armed:
    """One function on one place. `since` is None while the read that sets it is under way; `seen` is the newest event
    meanwhile."""

    __slots__ = ("folder", "notify", "place", "reads", "seen", "since")

    def __init__(self, place: Place, folder: str, notify: Notify) -> None:
        self.place, self.folder, self.notify = place, folder, notify
        self.since: int | None = None
        self.seen = self.reads = 0


class EtcdWatches:
    """All watches of one store."""

    def __init__(self, client: EtcdClient, places: EtcdKeySpace) -> None:
        self._client, self._places = client, places
        self._loop = asyncio.get_running_loop()
        self._folders: dict[str, _Folder] = {}
        self._pinger: asyncio.Task[None] | None = None
        self._closed = False

    def begin(self, kind: str, key: str, notify: Notify) -> Armed:
        """Announce a watch before the read that sets it; `settle` or `drop` comes after the read."""
        folder = key if kind == "children" else split(key)[0]
        if folder not in self._folders:
            self._folders[folder] = _Folder(self._client, self._places, folder, self.notify)
        return self._folders[folder].begin((kind, key), notify)

    def settle(self, armed: Armed, revision: int) -> None:
        """Set the watch as of the revision of its read."""
        folder = self._folders.get(armed.folder)
        if folder is not None and not self._closed:
            folder.settle(armed, revision)
            if self._pinger is None:
                self._pinger = asyncio.create_task(self._ping(), name="etcd watches")

    def drop(self, armed: Armed) -> None:
        """Drop the watch after a failed read, unless it was set before."""
        folder = self._folders.get(armed.folder)
        if folder is not None:
            folder.drop(armed)

    def fire_all(self) -> None:
        for folder in list(self._folders.values()):
            folder.fire_all()

    async def _ping(self) -> None:
        """Send a request to the current member now and then: a member that takes connections and is dead is silent on a
        stream.

        A request without an answer makes the client leave that member, with all streams.
        """
        wanted = {"key": coded(self._places.root), "count_only": True}
        while True:
            await asyncio.sleep(_PING_S)
            for name, folder in list(self._folders.items()):
                if folder.idle_for(self._loop.time()) > _IDLE_S:
                    del self._folders[name]
                    await folder.close()
            if any(folder.running for folder in self._folders.values()):
                with contextlib.suppress(BuckramError, EtcdRefused):
                    await self._client.call("kv/range", wanted, "watches", repeat=True)

    def notify(self, notify: Notify) -> None:
        if self._closed:
            return
        try:
            notify()
        except Exception as error:
            self._loop.call_exception_handler({"message": "a watch of etcd failed", "exception": error})

    async def close(self) -> None:
        """End all watches; none fires any more."""
        self._closed = True
        if self._pinger is not None:
            self._pinger.cancel()
            await asyncio.wait([self._pinger])
        for folder in self._folders.values():
            await folder.close()
        self._folders.clear()


class _Folder:
    """Direct children of one key, and its stream of events while there are watches."""

    def __init__(self, client: EtcdClient, places: EtcdKeySpace, folder: str, deliver: Deliver) -> None:
        self._client, self._places, self._deliver = client, places, deliver
        self._folder = folder
        self._range: Range = places.children(folder)
        self._armed: dict[Place, dict[Notify, Armed]] = {}
        self._task: asyncio.Task[None] | None = None
        self._at = self._began = 0
        """`_at`: revision up to which events were seen; `_began`: revision up to which this stream will never deliver
        events.
        """
        self._idle_since = 0.0
        self.connected = False
        """True while a server sends its events."""

    @property
    def running(self) -> bool:
        return self._task is not None

    def idle_for(self, now: float) -> float:
        if self._armed or not self._idle_since:
            self._idle_since = now
        return now - self._idle_since

    def begin(self, place: Place, notify: Notify) -> Armed:
        waiting = self._armed.setdefault(place, {})
        if notify not in waiting:
            waiting[notify] = Armed(place, self._folder, notify)
        waiting[notify].reads += 1
        return waiting[notify]

    def settle(self, armed: Armed, revision: int) -> None:
        if armed.since is not None or self._armed.get(armed.place, {}).get(armed.notify) is not armed:
            return  # set earlier, or it has fired
        armed.since = revision
        if self._task is None:
            self._at = self._began = revision
            self._task = asyncio.create_task(self._follow(), name=f"etcd watch {self._folder}")
        if armed.seen > revision or self._began > revision:
            self._fire(armed)  # there was a change that the stream has passed, or may have been

    def drop(self, armed: Armed) -> None:
        armed.reads -= 1
        if armed.since is None and not armed.reads:
            self._remove(armed)

    def _remove(self, armed: Armed) -> bool:
        waiting = self._armed.get(armed.place, {})
        if waiting.get(armed.notify) is not armed:
            return False
        del waiting[armed.notify]
        if not waiting:
            del self._armed[armed.place]
        return True

    def _fire(self, armed: Armed) -> None:
        if self._remove(armed):
            self._deliver(armed.notify)

    def fire_all(self) -> None:
        for waiting in list(self._armed.values()):
            for armed in list(waiting.values()):
                self._fire(armed)

    async def _follow(self) -> None:
        delays, said = Delays(STORE_WATCH, random), ""
        while True:
            at = self._client.at
            try:
                async for answer in self._client.stream("watch", self._request()):
                    delays.reset()
                    if not self._handle(answer):
                        break
            except EtcdRefused as refused:
                if refused.message != said:
                    _log.warning("etcd at %s refuses to be watched: %s", self._client.hosts, refused.message)
                said = refused.message
                if refused.transient:
                    self._client.leave(at)
            except (OSError, TimeoutError, ValueError, LookupError, TypeError) as error:
                _log.info("the watch of %s is set again: %s", self._folder, error)
                self._client.leave(at)
            except (MetadataUnavailable, ForkedClient):
                return  # closed, or of a process before a fork
            self.connected = False
            await asyncio.sleep(delays.take())

    def _request(self) -> dict[str, Any]:
        first, end = self._range
        wanted = {"key": coded(first), "range_end": coded(end), "start_revision": str(self._at + 1)}
        return {"create_request": wanted}

    def _handle(self, answer: dict[str, Any]) -> bool:
        """Handle one message of the stream; return False if it is the last."""
        if answer.get("canceled"):
            compacted = int(answer.get("compact_revision", 0))
            if compacted:
                # The events up to there are lost: all watches fire, and the stream goes on behind them.
                self._at = self._began = max(self._at, compacted - 1)
                self.fire_all()
            else:
                _log.warning("etcd ended the watch of %s: %s", self._folder, answer.get("cancel_reason", "no reason"))
            return False
        if answer.get("created"):
            self.connected = True
            now = int(answer["header"]["revision"])
            if now < self._at:
                # The servers were restored, or this one lags: awaited events may have other revisions there.
                self._at = self._began = now
                self.fire_all()
                return False
        for event in answer.get("events", ()):
            self._event(event)
        return True

    def _event(self, event: dict[str, Any]) -> None:
        kv = event["kv"]
        revision = int(kv["mod_revision"])
        self._at = max(self._at, revision)
        try:
            key = self._places.key(base64.b64decode(kv["key"]).decode("utf-8", "replace"))
        except MalformedRecord:
            return  # not a key of ours, so not watched
        self._changed(("value", key), revision)
        if event.get("type") == "DELETE" or kv.get("create_revision") == kv["mod_revision"]:
            self._changed(("children", self._folder), revision)

    def _changed(self, place: Place, revision: int) -> None:
        for armed in list(self._armed.get(place, {}).values()):
            if armed.since is None:
                armed.seen = max(armed.seen, revision)
            elif revision > armed.since:
                self._fire(armed)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None


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
