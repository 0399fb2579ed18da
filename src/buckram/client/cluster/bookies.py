"""The bookies as a client sees them: who is registered where, who failed lately, whom to choose.

Follows the registrations through a watch and keeps the last good set while the metadata store is away.
Failures are only ever a preference (quarantine, L9): where there is no other choice a failed bookie is
used. The choice itself is core/placement; connections are runtime/net/pool, which asks `resolve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from buckram.client.cluster.bookie_changes import BookieChange, OnChange, Unsubscribe, log, log_change
from buckram.client.cluster.recent_bookies import RecentBookies
from buckram.config import ClientConfig
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.ledgers.quorum import Quorum, SpreadRule
from buckram.core.placement.choose import (
    Candidate,
    Chosen,
    attainable,
    choose_ensemble,
    choose_with_absent,
    fewest_moves,
    replace_members,
)
from buckram.core.placement.explain import Shortage, shortages
from buckram.core.placement.judge import ack_rules
from buckram.core.placement.policy import PlacementPolicy, parse_location, parse_policy
from buckram.core.placement.topology import NOWHERE, Topology, by_distance, registered_topology
from buckram.core.wire.introduction import answers_introductions
from buckram.errors import MalformedRecord, MetadataError, NotEnoughBookies
from buckram.metadata.default import how_to_start
from buckram.metadata.records.bookie_health import convicted_bookies, slow_bookies
from buckram.metadata.records.topology import read_topology
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import MetadataStore, Runtime
from buckram.types import BookieAddress, BookieId, BookieInfo, BookieSet

_NOBODY_S = 3.0
"""Time a client waits for the first bookie to register before it reports that there is none, seconds."""


class BookieWatcher:
    """Follows the registered bookies; `async with` or start() and close().

    `appeared` means writable now and not before, `gone` the opposite; `moved` has another address.
    Callbacks run on the loop and must not block or raise.
    """

    def __init__(self, runtime: Runtime, store: MetadataStore, config: ClientConfig) -> None:
        self._rng = runtime.rng
        self._store = store
        self.recent = RecentBookies(config.quarantine_s)
        self.report_ok = self.recent.answered
        """Records that a bookie answered, and forgets its failures. Cheap; call it once per batch, not per entry."""
        self.policy = parse_policy("[client] placement", config.placement)
        """Placement policy of ledgers that name none."""
        self._here = parse_location("[client] location", config.location)
        self._bookies = BookieSet({}, {})
        self._registered: frozenset[BookieId] = frozenset()
        # Last known registration of every bookie ever seen, so that a lost session does not cut live connections.
        self._known: dict[BookieId, BookieInfo] = {}
        self.topology = Topology()
        """Place of every bookie that was ever seen: from metadata, else from its registration. Replaced after each
        change."""
        self.convicted: frozenset[BookieId] = frozenset()
        """Bookies that lied (F21): no new ensemble has them, writers replace them, and others are read first."""
        self.slow: frozenset[BookieId] = frozenset()
        """Bookies that report slow disks: new ensembles avoid them, and others are read first."""
        self.free_bytes: dict[BookieId, int] = {}
        """Free disk space as bookies report it, where a placement has weights (`client/shared/services.py`)."""
        self._began = 0.0
        self._attainable: dict[tuple[Quorum, str], Mapping[str, int]] = {}
        self.said_short: set[str] = set()
        """Ways in which new ledgers fell short of their placement that were logged already; cleared when bookies
        move."""
        self._configured = Topology()
        self._map_trouble = ""
        self._listeners: dict[int, OnChange] = {}
        self._next_listener = 0
        self.identity_required = False
        """True if the cluster requires bookies to identify themselves; others are not used then."""
        self._stale = asyncio.Event()
        self._scope = TaskScope("bookies")
        self._read_lock = asyncio.Lock()

    async def start(self) -> None:
        """Read the list once (MetadataUnavailable if that fails), then follow it."""
        self._began = self._now()
        await self._read()
        self._scope.keep(self._follow, "bookie watcher")

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
        """Return the last list that was read."""
        return self._bookies

    def info(self, bookie_id: BookieId) -> BookieInfo | None:
        """Return the present registration, writable or read-only; None without one."""
        return self._bookies.find(bookie_id)

    def incarnation(self, bookie_id: BookieId) -> str | None:
        """Return the last incarnation seen of a bookie; None if it never gave one (Apache's do not)."""
        known = self._known.get(bookie_id)
        return known.incarnation if known else None

    def last_info(self, bookie_id: BookieId) -> BookieInfo | None:
        """Return the present registration, or the last one that was seen."""
        return self._known.get(bookie_id)

    def nobody(self) -> NotEnoughBookies | None:
        """Return an error if no bookie has been registered since this client began, a few seconds ago; else None.
        Bookies that were there and went are waited for: they may restart."""
        if self._known or self._now() - self._began < _NOBODY_S:
            return None
        uri = self._store.uri
        return NotEnoughBookies(1, 0, f"no bookie of the cluster at {uri} is registered: {how_to_start(uri)}")

    def require_identity(self, required: bool) -> None:
        """Use only bookies that identify themselves; listeners are called as after a change of the list."""
        if required != self.identity_required:
            self.identity_required = required
            self._notify(BookieChange())

    @property
    def readonly(self) -> tuple[BookieId, ...]:
        """Return the registered bookies that take no new entries, sorted."""
        return tuple(sorted(self._bookies.readonly))

    def resolve(self, bookie_id: BookieId) -> BookieAddress | None:
        """Return the address of a bookie, or None. A bookie that lost its registration keeps its address, unless
        another one lives there now: an answer of another bookie would count as evidence of absence."""
        known = self._known.get(bookie_id)
        if known is None or known.address is None:
            return None
        if bookie_id not in self._bookies.writable and bookie_id not in self._bookies.readonly:
            for group in (self._bookies.writable, self._bookies.readonly):
                if any(other.address == known.address for other in group.values()):
                    return None
        return known.address

    def on_change(self, listener: OnChange) -> Unsubscribe:
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
        """Record that a bookie refused, timed out or broke: it is avoided for a while where there is a choice."""
        self.recent.failed(bookie_id, self._now())

    def report_wrong_bookie(self, bookie_id: BookieId) -> None:
        """Record that another bookie answers in its place: it is avoided for a while, and its registration is read
        anew."""
        self.report_failed(bookie_id)
        self._stale.set()

    def report_slow(self, bookie_id: BookieId, for_s: float | None = None) -> None:
        """Record that a hedged read beat the bookie: others are read first, for a while or for `for_s`. No effect on
        placement."""
        self.recent.beaten(bookie_id, self._now(), for_s)

    def quarantined(self, bookie_id: BookieId) -> bool:
        return self.recent.quarantined(bookie_id, self._now())

    def read_order(self, members: Sequence[BookieId]) -> Sequence[BookieId]:
        """Return the members in the order in which to read from them: near ones first, of these the quick ones, else as
        given; then those that were beaten, failed ones, unregistered ones.

        None is left out: order is about latency, never about correctness.
        """
        if self.recent.uneven:
            members = self.recent.quick_first(members, self._now())
        if self._here is not NOWHERE:
            members = by_distance(members, self._here, self.topology)
        if self.recent.quiet and not self.convicted and not self.slow and self._registered.issuperset(members):
            return members
        return sorted(members, key=self._read_class)

    def _read_class(self, bookie_id: BookieId) -> int:
        if self._bookies.find(bookie_id) is None:
            return 3
        if bookie_id in self.convicted:
            return 2
        return max(self.recent.read_class(bookie_id, self._now()), 1 if bookie_id in self.slow else 0)

    # -- placement ----------------------------------------------------------------------------------------

    def ack_rules(self, policy: PlacementPolicy, write_quorum: int) -> tuple[SpreadRule, ...]:
        """Return the domains that the copies of an entry must span when it is acknowledged (M5), by the present
        topology."""
        return ack_rules(policy, self._domain, write_quorum)

    def _domain(self, bookie_id: BookieId, level: str) -> str | None:
        return self.topology.domain(bookie_id, level)

    def choose(self, quorum: Quorum, policy: PlacementPolicy | None = None) -> Chosen:
        """Return an ensemble of writable bookies. Raises NotEnoughBookies, which names what is missing."""
        policy = policy or self.policy
        return choose_ensemble(self.candidates(), quorum, self._rng, topology=self.topology, policy=policy)

    async def choose_fresh(
        self, quorum: Quorum, *, policy: PlacementPolicy | None = None, degraded: bool = False
    ) -> Chosen:
        """Choose as `choose` does, but look at the store once more before saying that there are not enough.

        `degraded`: then up to Qw - Qa bookies may be members that are known (they have a cookie) and away (M11).
        """
        policy = policy or self.policy
        try:
            return self.choose(quorum, policy)
        except NotEnoughBookies:
            await self.refresh()
        try:
            return self.choose(quorum, policy)
        except NotEnoughBookies:
            if not degraded or quorum.write_quorum == quorum.ack_quorum:
                raise
            known = await self._store.known_bookies()
            with suppress(NotEnoughBookies):
                return choose_with_absent(
                    self.candidates(), self._away(known), quorum, self._rng, topology=self.topology, policy=policy
                )
            raise  # the error of the first choice is more precise

    def _away(self, known: Collection[BookieId]) -> list[BookieId]:
        """Return bookies with a cookie that take no entries now: read-only ones, those that were seen lately, the
        others."""
        there = self._bookies
        away = sorted(b for b in known if b not in there.writable and b not in self.convicted)
        away.sort(key=lambda b: 0 if b in there.readonly else 1 if b in self._known else 2)
        return away

    def replace(
        self,
        ensemble: Sequence[BookieId],
        failed: Mapping[int, BookieId],
        exclude: Collection[BookieId] = (),
        write_quorum: int = 1,
        *,
        policy: PlacementPolicy | None = None,
        only: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        """Return replacements for failed positions (position -> failed bookie), for as many as possible: maybe none.

        A position that no longer holds the failed bookie is skipped. Never picks a member of `ensemble`,
        a failed bookie or one of `exclude`, and where `only` names some, no other than these.
        """
        positions = [position for position, bookie_id in failed.items() if ensemble[position] == bookie_id]
        if not positions:
            return {}
        candidates = self.candidates()
        return replace_members(
            [one for one in candidates if one.bookie_id in only] if only else candidates,
            ensemble,
            positions,
            write_quorum,
            self._rng,
            topology=self.topology,
            policy=policy or self.policy,
            exclude=[*exclude, *failed.values()],
        )

    def moves(
        self, ensemble: Sequence[BookieId], quorum: Quorum, policy: PlacementPolicy
    ) -> dict[int, BookieId] | None:
        """Return the members to replace so that the ensemble meets the policy, by position; None if no bookies would
        do."""
        return fewest_moves(self.candidates(), ensemble, quorum, self._rng, topology=self.topology, policy=policy)

    def attainable(self, quorum: Quorum, policy: PlacementPolicy) -> Mapping[str, int]:
        """Return how many domains of each level all write quorums of a new ledger would span."""
        shape = quorum, str(policy)
        if shape not in self._attainable:
            self._attainable[shape] = attainable(self.candidates(), quorum, policy, self.topology)
        return self._attainable[shape]

    def shortages(self, quorum: Quorum, policy: PlacementPolicy | None = None) -> list[Shortage]:
        """Return the requirements of this policy that the writable bookies cannot meet for new ledgers of this
        shape."""
        return shortages(self.candidates(), quorum, policy or self.policy, self.topology)

    def candidates(self) -> list[Candidate]:
        """Return the bookies that may be chosen now."""
        now = self._now()
        return [
            Candidate(
                bookie_id,
                self.quarantined(bookie_id) or bookie_id in self.slow,
                self.free_bytes.get(bookie_id, 0),
                self.recent.adds.recent_s(bookie_id, now),
            )
            for bookie_id, info in self._bookies.writable.items()
            if info.address is not None
            and bookie_id not in self.convicted
            and (not self.identity_required or answers_introductions(info))
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
                slow = frozenset(await slow_bookies(self._store, self._stale.set))
                configured = await self._configured_topology()
            except BaseException:
                self._stale.set()
                raise
            lately, self.convicted, self.slow = convicted - self.convicted, convicted, slow
            first = not self._known
            change = self._install(fresh, lately, configured)
            if not first:
                log_change(change, fresh)
        if change:
            self._notify(change)

    def _notify(self, change: BookieChange) -> None:
        for listener in list(self._listeners.values()):
            listener(change)

    async def _configured_topology(self) -> Topology:
        """Return the topology of the map in metadata. A map that does not parse is logged and changes nothing."""
        try:
            self._configured = await read_topology(self._store, self._stale.set)
        except MalformedRecord as error:
            if str(error) != self._map_trouble:
                log.warning("the list of bookies cannot be read now, so the last one stays in use: %s", error)
            self._map_trouble = str(error)
        else:
            self._map_trouble = ""
        return self._configured

    def _install(self, fresh: BookieSet, convicted: frozenset[BookieId], configured: Topology) -> BookieChange:
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
        self._bookies, self._registered = fresh, frozenset((*fresh.writable, *fresh.readonly))
        appeared = tuple(b for b in fresh.writable if b not in old.writable)
        for bookie_id in (*appeared, *reborn):
            self.recent.forget(bookie_id)
        gone = tuple(b for b in old.writable if b not in fresh.writable)
        topology = configured.over(registered_topology(self._known))
        self._attainable.clear()
        before = self.topology
        relocated = before.labels != topology.labels or any(
            topology.location(b) != location for b, location in before.locations.items()
        )
        if relocated or topology != before:
            self.topology = topology
            self.said_short.clear()
        return BookieChange(appeared, gone, tuple(moved), tuple(reborn), tuple(sorted(convicted)), relocated)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
