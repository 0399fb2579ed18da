"""Watches on etcd: one stream of events for each folder in which something is watched.

A watch is set as of the revision that was read with it, and fires for events behind that one; a stream that is cut is
asked for again from where it was. So nothing is missed in between. Where etcd has forgotten the events (compaction),
all watches of the folder fire: whoever set them reads again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
from typing import Any

from buckram.core.backoff import STORE_WATCH, Delays
from buckram.errors import BuckramError, ForkedClient, MalformedRecord, MetadataUnavailable
from buckram.metadata.etcd.client import EtcdClient, EtcdRefused
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
