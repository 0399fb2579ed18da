"""The bookies as a client sees them: who is registered where, who failed lately, whom to choose.

Follows the registrations through a watch and keeps the last good set while the metadata store is away.
Failures are only ever a preference (quarantine, L9): where there is no other choice a failed bookie is
used. The choice itself is core/cluster/placement; connections are net/pool, which asks `resolve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from buckram.client.shared.log import log
from buckram.config import ClientConfig
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.cluster.placement import (
    Candidate,
    Chosen,
    RackRule,
    choose_ensemble,
    choose_with_absent,
    replace_members,
)
from buckram.core.ledgers.quorum import Quorum
from buckram.core.wire.introduction import says_who_it_is
from buckram.errors import MetadataError, NotEnoughBookies
from buckram.metadata.accused import convicted_bookies
from buckram.net.tasks import TaskScope
from buckram.seams import MetadataStore, Runtime
from buckram.types import BookieAddress, BookieId, BookieInfo, BookieSet

RACK_PROPERTY = "buckram.rack"


@dataclass(frozen=True, slots=True)
class BookieChange:
    """What a new bookie list changed. An id in `reborn` came back with another incarnation: its old data is gone.
    One in `convicted` is known as a liar from now on."""

    appeared: tuple[BookieId, ...] = ()
    gone: tuple[BookieId, ...] = ()
    moved: tuple[BookieId, ...] = ()
    reborn: tuple[BookieId, ...] = ()
    convicted: tuple[BookieId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.appeared or self.gone or self.moved or self.reborn or self.convicted)


OnChange = Callable[[BookieChange], None]


class BookieWatcher:
    """Follows the registered bookies; `async with` or start() and close().

    `appeared` means writable now and not before, `gone` the opposite; `moved` has another address.
    Callbacks run on the loop and must not block or raise.
    """

    def __init__(
        self, runtime: Runtime, store: MetadataStore, config: ClientConfig, *, rule: RackRule | None = None
    ) -> None:
        self._rng = runtime.rng
        self._store = store
        self._quarantine_s = config.quarantine_s
        self._rule = rule or RackRule(config.min_racks_per_write_quorum, bool(config.enforce_min_racks))
        self._bookies = BookieSet({}, {})
        self._registered: frozenset[BookieId] = frozenset()
        # Last known registration of every bookie ever seen, so that a lost session does not cut live connections.
        self._known: dict[BookieId, BookieInfo] = {}
        self.racks: dict[BookieId, str] = {}
        """Where every bookie is that was ever seen and says so. Grows and changes in place."""
        self.convicted: frozenset[BookieId] = frozenset()
        """They lied (F21): no new ensemble gets them, writers leave them, and others are read first."""
        self._failed_until: dict[BookieId, float] = {}
        self._slow_until: dict[BookieId, float] = {}
        self._listeners: dict[int, OnChange] = {}
        self._next_listener = 0
        self.identity_required = False
        """Bookies that do not say who they are are not to be used."""
        self._stale = asyncio.Event()
        self._scope = TaskScope("bookies")
        self._read_lock = asyncio.Lock()

    async def start(self) -> None:
        """Read the list once (MetadataUnavailable if that fails), then follow it."""
        await self._read()
        self._scope.spawn(self._follow(), "bookie watcher")

    async def close(self) -> None:
        self._listeners.clear()
        await self._scope.close()

    async def __aenter__(self) -> BookieWatcher:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- who is where -------------------------------------------------------------------------------------

    @property
    def bookies(self) -> BookieSet:
        """The last list that was read."""
        return self._bookies

    def info(self, bookie_id: BookieId) -> BookieInfo | None:
        """The present registration, writable or read-only."""
        return self._bookies.find(bookie_id)

    def incarnation(self, bookie_id: BookieId) -> str | None:
        """The last incarnation seen of a bookie; None where it never told one (Apache's do not)."""
        known = self._known.get(bookie_id)
        return known.incarnation if known else None

    def last_info(self, bookie_id: BookieId) -> BookieInfo | None:
        """The present registration, or the last one that was seen."""
        return self._known.get(bookie_id)

    def require_identity(self, required: bool) -> None:
        """Use only bookies that say who they are; listeners hear of it as of a change of the list."""
        if required != self.identity_required:
            self.identity_required = required
            self._tell(BookieChange())

    @property
    def readonly(self) -> tuple[BookieId, ...]:
        """Bookies that are there and take no new entries."""
        return tuple(sorted(self._bookies.readonly))

    def resolve(self, bookie_id: BookieId) -> BookieAddress | None:
        """Where to connect. Also for a bookie that lost its registration, unless another one lives there now:
        an answer of a stranger would count as evidence of absence."""
        known = self._known.get(bookie_id)
        if known is None or known.address is None:
            return None
        if self._bookies.find(bookie_id) is None:
            for group in (self._bookies.writable, self._bookies.readonly):
                if any(other.address == known.address for other in group.values()):
                    return None
        return known.address

    def on_change(self, listener: OnChange) -> Callable[[], None]:
        """Call `listener` after each change of the list; returns the function that unsubscribes."""
        number = self._next_listener
        self._next_listener += 1
        self._listeners[number] = listener

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe

    async def refresh(self) -> BookieSet:
        """Read the list now; MetadataError when the store is away (the old list stays)."""
        await self._read()
        return self._bookies

    # -- history ------------------------------------------------------------------------------------------

    def report_failed(self, bookie_id: BookieId) -> None:
        """It refused, timed out or broke: avoid it for a while where there is a choice."""
        self._failed_until[bookie_id] = self._now() + self._quarantine_s

    def report_stranger(self, bookie_id: BookieId) -> None:
        """Somebody else answers in its place: avoid it for a while, and see whether it is registered anew."""
        self.report_failed(bookie_id)
        self._stale.set()

    def report_slow(self, bookie_id: BookieId, for_s: float | None = None) -> None:
        """A hedged read beat it: read from others first, for a while or for `for_s`. No effect on placement."""
        until = self._now() + (self._quarantine_s if for_s is None else for_s)
        self._slow_until[bookie_id] = max(until, self._slow_until.get(bookie_id, 0.0))

    def report_ok(self, bookie_id: BookieId) -> None:
        """It answered: forget what it did before. Cheap; call it once per batch, not per entry."""
        if self._failed_until:
            self._failed_until.pop(bookie_id, None)

    def quarantined(self, bookie_id: BookieId) -> bool:
        until = self._failed_until.get(bookie_id)
        if until is None:
            return False
        if until > self._now():
            return True
        del self._failed_until[bookie_id]
        return False

    def read_order(self, members: Sequence[BookieId]) -> Sequence[BookieId]:
        """The members in the order in which to read from them: good ones as given, then slow, failed, unregistered.

        None is left out: order is about latency, never about correctness.
        """
        quiet = not self._failed_until and not self._slow_until and not self.convicted
        if quiet and self._registered.issuperset(members):
            return members
        return sorted(members, key=self._read_class)

    def _read_class(self, bookie_id: BookieId) -> int:
        if self._bookies.find(bookie_id) is None:
            return 3
        if bookie_id in self.convicted or self.quarantined(bookie_id):
            return 2
        until = self._slow_until.get(bookie_id)
        if until is None:
            return 0
        if until > self._now():
            return 1
        del self._slow_until[bookie_id]
        return 0

    # -- placement ----------------------------------------------------------------------------------------

    @property
    def enforced_racks(self) -> int:
        """Racks that the copies of an entry must span when it is acknowledged; 0 where that is not enforced (M5)."""
        return self._rule.min_racks if self._rule.enforce else 0

    def choose(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, exclude: Collection[BookieId] = ()
    ) -> tuple[BookieId, ...]:
        """An ensemble of writable bookies. NotEnoughBookies names the numbers; InvalidArgument for a bad shape."""
        return choose_ensemble(
            self._candidates(), ensemble_size, write_quorum, ack_quorum, self._rng, rule=self._rule, exclude=exclude
        )

    async def choose_fresh(self, quorum: Quorum, *, degraded: bool = False) -> Chosen:
        """As `choose`, but looks at the store once more before it says that there are not enough.

        `degraded`: then up to Qw - Qa bookies may be members that are known (they have a cookie) and away (M11).
        """
        shape = quorum.ensemble_size, quorum.write_quorum, quorum.ack_quorum
        try:
            return Chosen(self.choose(*shape))
        except NotEnoughBookies:
            await self.refresh()
        try:
            return Chosen(self.choose(*shape))
        except NotEnoughBookies:
            if not degraded or quorum.write_quorum == quorum.ack_quorum:
                raise
            known = await self._store.known_bookies()
            return choose_with_absent(self._candidates(), self._away(known), quorum, self._rng, rule=self._rule)

    def _away(self, known: Collection[BookieId]) -> list[Candidate]:
        """Bookies with a cookie that take no entries now: read-only ones, those that were seen lately, the others."""
        there = self._bookies
        away = sorted(b for b in known if b not in there.writable and b not in self.convicted)
        away.sort(key=lambda b: 0 if b in there.readonly else 1 if b in self._known else 2)
        return [Candidate(b, self.racks.get(b)) for b in away]

    def replace(
        self,
        ensemble: Sequence[BookieId],
        failed: Mapping[int, BookieId],
        exclude: Collection[BookieId] = (),
        write_quorum: int = 1,
        ack_quorum: int = 1,
    ) -> dict[int, BookieId]:
        """Replacements for failed positions (position -> failed bookie), for as many as possible: maybe none.

        A position that no longer holds the failed bookie is skipped. Never picks a member of `ensemble`,
        a failed bookie or one of `exclude`.
        """
        positions = [position for position, bookie_id in failed.items() if ensemble[position] == bookie_id]
        if not positions:
            return {}
        return replace_members(
            self._candidates(),
            ensemble,
            positions,
            write_quorum,
            self._rng,
            racks=self.racks,
            rule=self._rule,
            exclude=[*exclude, *failed.values()],
        )

    def _candidates(self) -> list[Candidate]:
        return [
            Candidate(
                bookie_id,
                _rack(info),
                avoid=self.quarantined(bookie_id),
            )
            for bookie_id, info in self._bookies.writable.items()
            if info.address is not None
            and bookie_id not in self.convicted
            and (not self.identity_required or says_who_it_is(info))
        ]

    # -- following ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        delays = Delays(STORE_WATCH)
        while True:
            await self._stale.wait()
            try:
                await self._read()
                delays.reset()
            except MetadataError:
                # The old set stays in force: bookies do not die because the metadata store is away.
                self._stale.set()
                await asyncio.sleep(delays.take())

    async def _read(self) -> None:
        # One reader at a time: a slow answer must never overwrite a newer one.
        async with self._read_lock:
            self._stale.clear()
            try:
                fresh = await self._store.bookies(self._stale.set)
                convicted = frozenset(await convicted_bookies(self._store, self._stale.set))
            except BaseException:
                self._stale.set()
                raise
            lately, self.convicted = convicted - self.convicted, convicted
            first = not self._known
            change = self._install(fresh, lately)
            if not first:
                _say(change, fresh)
        if change:
            self._tell(change)

    def _tell(self, change: BookieChange) -> None:
        for listener in list(self._listeners.values()):
            listener(change)

    def _install(self, fresh: BookieSet, convicted: frozenset[BookieId]) -> BookieChange:
        old = self._bookies
        moved, reborn = [], []
        for group in (fresh.readonly, fresh.writable):
            for bookie_id, info in group.items():
                known = self._known.get(bookie_id)
                if known is not None and bookie_id not in moved and known.address != info.address:
                    moved.append(bookie_id)
                if known is not None and bookie_id not in reborn and known.incarnation not in (None, info.incarnation):
                    reborn.append(bookie_id)
                self._known[bookie_id] = info
                if (rack := _rack(info)) is not None:
                    self.racks[bookie_id] = rack
        self._bookies, self._registered = fresh, frozenset((*fresh.writable, *fresh.readonly))
        appeared = tuple(b for b in fresh.writable if b not in old.writable)
        for bookie_id in (*appeared, *reborn):
            # It registered anew: whatever it did before was another process or session.
            self._failed_until.pop(bookie_id, None)
            self._slow_until.pop(bookie_id, None)
        gone = tuple(b for b in old.writable if b not in fresh.writable)
        return BookieChange(appeared, gone, tuple(moved), tuple(reborn), tuple(sorted(convicted)))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _say(change: BookieChange, now: BookieSet) -> None:
    for bookie_id in change.gone:
        if bookie_id in now.readonly:
            log.info("bookie %s is read-only: it takes no new entries", bookie_id)
        else:
            log.warning("bookie %s is lost: it is not registered any more", bookie_id)
    for bookie_id in change.appeared:
        log.info("bookie %s is there", bookie_id)
    for bookie_id in change.reborn:
        log.warning("bookie %s came back without the data that it had", bookie_id)
    for bookie_id in change.convicted:
        log.warning("bookie %s is convicted of lying: see `buckram cluster check`", bookie_id)


def _rack(info: BookieInfo) -> str | None:
    return info.properties.get(RACK_PROPERTY)
