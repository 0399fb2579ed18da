"""The change of a writer's ensemble when a bookie fails: another bookie in its place, or fewer copies for a while (2.6
to 2.9).

The window (core/ledgers/append) holds what is acknowledged, the cell what durable metadata records, the watcher which
bookies to take. This module is the order of events between them. Fencing and other ends of a writer are the writer's
business.

Degraded: no replacement exists (or the metadata store is away), but every write set still has Qa recorded members. Then
the ensemble stays, the failed position is not written to, and entries are acknowledged by Qa of the others. It is tried
again when the list of bookies changes and now and then: another bookie, or the failed one if it answers again as the
same incarnation. A returned bookie counts only for entries that it acknowledges after its return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Protocol

from buckram.client.cluster.bookie_changes import BookieChange, log
from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.shared.lagging_replicas import LaggingMembers
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.core.backoff import BOOKIE_REPLACEMENT, Delays
from buckram.core.ledgers.append import AppendWindow, Send
from buckram.core.ledgers.metadata import ensemble_changed
from buckram.core.ledgers.quorum import SpreadRule
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.wire.messages import GetBookieInfo
from buckram.errors import (
    BuckramError,
    Code,
    InvariantViolation,
    LedgerFenced,
    LoginRequired,
    MetadataError,
    MetadataUnavailable,
    NotEnoughBookies,
    WriteFailed,
)
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, EntryId, LedgerMetadata, LedgerState, Slot

_WITHIN_S = 30.0
"""Time appends wait for the metadata store when they cannot be acknowledged without it, seconds."""
_DEGRADED_WITHIN_S = 1.0
_AVOID_S = 5.0
"""A bookie that failed this writer so recently is not taken back while the writer can do without."""
_PROBE_S = 2.0
_GIVE_UP_MIN_S, _GIVE_UP_MAX_S = 0.05, 1.0
"""Pause before bookies that have just failed are tried again because there are no others."""


class EnsembleEvents(Protocol):
    """The writer whose ensemble changes, and what an ensemble change asks of it."""

    def resend(self, sends: Sequence[Send]) -> None:
        """Look up anew to whom adds go, and send these again (maybe none)."""
        ...

    def on_head_moved(self) -> None:
        """Resolve the futures of entries that have become acknowledged."""
        ...

    def fail(self, error: BuckramError) -> None:
        """End the writer with `error`; no effect where it has ended."""
        ...


class EnsembleChange:
    """Owns the failures of one writer.

    `slot_failed` and `bookies_changed` are plain calls; tasks run in `scope`.
    """

    def __init__(
        self,
        window: AppendWindow,
        cell: MetadataCell,
        watcher: BookieWatcher,
        pool: BookiePool,
        scope: TaskScope,
        *,
        writer: EnsembleEvents,
        lagging_members: LaggingMembers,
        policy: PlacementPolicy | None = None,
    ) -> None:
        self._policy = policy
        self._window, self._cell, self._watcher, self._pool, self._scope = window, cell, watcher, pool, scope
        self._writer = writer
        self._lagging_members = lagging_members
        self._loop = asyncio.get_running_loop()
        self._incarnations: dict[BookieId, str | None] = {}
        self._failed_at: dict[BookieId, float] = {}
        self._last_error = ""
        self._login: LoginRequired | None = None
        """The last failure, if it is one that no waiting mends."""
        self._timer: asyncio.TimerHandle | None = None
        self._delays = Delays(BOOKIE_REPLACEMENT)
        self._retrying = False
        self._give_up_s, self._give_up_head = _GIVE_UP_MIN_S, -1
        self.degraded = ""
        """Reason why fewer bookies than Qw get the entries; empty when all is well."""
        self.changes = 0
        self._misplaced = False
        # They hold nothing of this ledger, so it is no matter whether they come back with what they had.
        self._awaited = dict.fromkeys(window.absent.values())
        self._remember_incarnations()
        if window.absent:
            self._last_error = "it was away when the ledger was made"
            self._after_resume("")
        if watcher.convicted:
            self._loop.call_soon(self.leave_convicted)

    def slot_failed(self, slot: Slot, error: BuckramError) -> bool:
        """Handle the failure of an add at a slot; return True unless it is stale. Merged into a change that is
        running."""
        window = self._window
        position = window.failed(slot)
        if position is None:
            return False
        bookie = window.absent[position]
        self._watcher.report_failed(bookie)
        self._lagging_members.failed(bookie)
        self._failed_at[bookie] = self._loop.time()
        self._last_error = str(error)
        self._login = error if isinstance(error, LoginRequired) else None
        log.info("ledger %d: bookie %s failed: %s", window.ledger_id, bookie, error)
        self._writer.resend(())  # no more to this one
        if window.deferred_sync:
            # M3: entries acknowledged but not forced live on the bookie that would be dropped.
            self._writer.fail(
                WriteFailed(window.ledger_id, f"{error}; a deferred-sync ledger cannot change its bookies")
            )
        elif not window.changing:
            self._start()
        return True

    def bookies_changed(self, change: BookieChange) -> None:
        """Handle a change of the list of bookies; the watcher's callback."""
        window = self._window
        if window.closed:
            return
        for bookie in change.reborn:
            if bookie in window.ensemble and self._is_reborn(bookie):
                slot = window.slots[window.ensemble.index(bookie)]
                self.slot_failed(slot, WriteFailed(window.ledger_id, f"bookie {bookie} came back without its data"))
        self._remember_incarnations()
        if window.relocated():
            self._writer.on_head_moved()
        self._leave_misplaced()
        self.leave_convicted()
        if window.absent and not window.closed:
            self._delays.reset()
            self._retry_soon()

    def _leave_misplaced(self) -> None:
        """Replace misplaced members where others can take their places: the map was changed, and nothing could be
        acknowledged any more (M5). Where none can, wait for the map or for bookies: a wrong line ends no writer."""
        window = self._window
        if window.closed or window.changing or window.deferred_sync or self._scope.closed:
            return
        unmet = window.unmet(window.ensemble, window.absent)
        if not unmet:
            if self._misplaced and not window.absent:
                self.degraded = ""
            self._misplaced = False
            return
        why = unmet[0].explain([b for p, b in enumerate(window.ensemble) if p not in window.absent])
        moves = self._watcher.moves(window.ensemble, window.quorum, self._policy or self._watcher.policy) or {}
        for position in moves:
            self.slot_failed(window.slots[position], WriteFailed(window.ledger_id, why))
        if not moves:
            if not self._misplaced:
                log.warning("ledger %d waits: %s, see `buckram placement explain`", window.ledger_id, why)
            self._misplaced, self.degraded = True, why

    def leave_convicted(self) -> None:
        """Replace members that lied where others can take their places (F21). Where none can they stay: what they
        acknowledge counts as before."""
        why = "is convicted of lying: see `buckram cluster check`"
        self._leave({bookie: f"bookie {bookie} {why}" for bookie in self._watcher.convicted})

    def slow_members(self, slow: dict[BookieId, str]) -> None:
        """Replace members that have been slow for too long where others can take their places."""
        self._leave({bookie: f"bookie {bookie} is slow: {why}" for bookie, why in slow.items()})

    def _leave(self, leaving: dict[BookieId, str]) -> None:
        window = self._window
        if not leaving or window.closed or window.changing or window.deferred_sync or self._scope.closed:
            return
        members = {p: b for p, b in enumerate(window.ensemble) if b in leaving and p not in window.absent}
        for position in self._choose(window.ensemble, members, leaving, doomed=False) if members else ():
            self.slot_failed(window.slots[position], WriteFailed(window.ledger_id, leaving[members[position]]))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the change ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        first_entry = self._window.freeze()
        self._scope.spawn(self._change(first_entry), "ensemble change")

    async def _change(self, first_entry: EntryId) -> None:
        """Record replacements until no new failure came in between, then resume. The window stays frozen."""
        window, cell = self._window, self._cell
        tried: dict[BookieId, None] = {}
        while True:
            handled = dict(window.absent)
            tried.update(dict.fromkeys(handled.values()))
            trouble = ""
            try:
                await self._record(first_entry, handled, tried)
            except MetadataUnavailable as error:
                # Only absent positions may differ between what we know and what that write may have recorded, so
                # what the others acknowledge counts under both records (S4).
                trouble = str(error)
            except InvariantViolation:
                raise  # a bug: the scope reports it and the writer ends
            except BuckramError as error:
                self._writer.fail(self._ended(error))
                return
            if window.closed:
                return
            if window.absent == handled:
                break
        ensemble = cell.metadata.last_fragment.ensemble
        left = {p: b for p, b in window.absent.items() if ensemble[p] == b}
        if not window.quorum.writable(left):
            self._writer.fail(self._too_few(left, trouble))
            return
        unmet = window.unmet(ensemble, left)
        if unmet:
            self._writer.fail(self._unspread(unmet[0], [b for p, b in enumerate(ensemble) if p not in left], trouble))
            return
        if ensemble != window.ensemble:
            self.changes += 1
            members = ", ".join(ensemble)
            log.info("ledger %d: ensemble changed at entry %d to %s", window.ledger_id, first_entry, members)
            for bookie in [bookie for bookie in self._lagging_members.left if bookie not in ensemble]:
                self._lagging_members.returned(bookie)
        sends, moved = window.resume(ensemble)
        self._after_resume(trouble)
        self._writer.resend(sends)
        if moved:
            self._writer.on_head_moved()
        if self._watcher.convicted:  # one of them may have come to be known meanwhile
            self._loop.call_soon(self.leave_convicted)

    async def _record(self, first_entry: EntryId, failed: dict[int, BookieId], tried: dict[BookieId, None]) -> None:
        """Record the ensemble change by the compare-and-set of 2.6 step 3: predicate and choice are made anew on every
        fresh record."""
        window = self._window
        doomed = not window.survives()
        if doomed and not self._choose(window.ensemble, failed, tried, doomed=False):
            await self._before_giving_up()

        def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
            self._check_open(metadata)
            ensemble = metadata.last_fragment.ensemble
            chosen = self._choose(ensemble, failed, tried, doomed)
            if not chosen or window.closed:
                return None
            return ensemble_changed(metadata, first_entry, [chosen.get(p, b) for p, b in enumerate(ensemble)])

        await self._cell.update(change, within_s=_WITHIN_S if doomed else _DEGRADED_WITHIN_S)

    async def _before_giving_up(self) -> None:
        """Read the list of bookies again before giving up: it may be older than a bookie that could help, and those
        left have failed a moment ago."""
        with suppress(MetadataError, TimeoutError):  # then what we know has to do
            async with asyncio.timeout(_PROBE_S):
                await self._watcher.refresh()
        head = self._window.pending_head
        self._give_up_s = _GIVE_UP_MIN_S if head > self._give_up_head else min(self._give_up_s * 2, _GIVE_UP_MAX_S)
        self._give_up_head = head
        await asyncio.sleep(self._give_up_s)

    def _choose(
        self, ensemble: Sequence[BookieId], failed: dict[int, BookieId], tried: Collection[BookieId], doomed: bool
    ) -> dict[int, BookieId]:
        """Return replacements for as many failed positions as possible; none that failed in this change (trap 28)."""
        quorum, now = self._window.quorum, self._loop.time()
        self._failed_at = {b: at for b, at in self._failed_at.items() if now - at < _AVOID_S}
        recent = [*tried, *self._failed_at]
        replace, policy = self._watcher.replace, self._policy
        chosen = replace(ensemble, failed, recent, quorum.write_quorum, policy=policy)
        if not chosen and doomed:
            chosen = replace(ensemble, failed, list(tried), quorum.write_quorum, policy=policy)
        return chosen

    def _check_open(self, metadata: LedgerMetadata) -> None:
        """Raise if another state was written: a writer that sees one never acknowledges again (F11)."""
        if metadata.state is LedgerState.CLOSED:
            raise LedgerFenced(self._window.ledger_id, f"another client closed it at entry {metadata.last_entry}")
        if metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFenced(self._window.ledger_id)

    def _after_resume(self, trouble: str) -> None:
        window = self._window
        self._remember_incarnations()
        if window.absent:
            names = ", ".join(window.absent.values())
            why = trouble or f"no bookie can take the place of {names}"
            if not self.degraded:
                log.warning("ledger %d: degraded, %s (%s)", window.ledger_id, why, self._last_error)
            self.degraded = f"{why} ({self._last_error})"
            self._retry_later()
        else:
            if self.degraded:
                log.info("ledger %d: healed, entries get all their copies again", window.ledger_id)
            self.degraded = ""
            self._delays.reset()

    def _ended(self, cause: BuckramError, message: str = "") -> BuckramError:
        if isinstance(cause, LedgerFenced):
            return cause
        error = WriteFailed(self._window.ledger_id, message or str(cause))
        error.__cause__ = cause
        return error

    def _too_few(self, left: dict[int, BookieId], trouble: str) -> BuckramError:
        quorum = self._window.quorum
        usable = quorum.ensemble_size - len(left)
        message = (
            f"of the {quorum.ensemble_size} bookies ({quorum}) only {usable} are usable, some write set has fewer than "
            f"{quorum.ack_quorum}, and {trouble or 'no other bookie can be used'}; last failure: {self._last_error}"
        )
        return self._ended(self._login or NotEnoughBookies(quorum.ack_quorum, usable, message), message)

    def _unspread(self, rule: SpreadRule, usable: Sequence[BookieId], trouble: str) -> BuckramError:
        """Return the error for an ensemble that an acknowledgement could not span any more (M5)."""
        message = (
            f"{rule.explain(usable)}; {trouble or 'no other bookie can be used'}: start bookies in another "
            f"{rule.level}, or do not enforce the placement; last failure: {self._last_error}"
        )
        return self._ended(NotEnoughBookies(rule.needed, len(usable), message), message)

    # -- back to full strength ----------------------------------------------------------------------------

    def _retry_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._delays.take(), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._retry_soon()

    def _retry_soon(self) -> None:
        window = self._window
        if self._retrying or window.closed or window.changing or not window.absent or self._scope.closed:
            return
        self._retrying = True
        self._scope.spawn(self._retry(), "back to full strength")

    async def _retry(self) -> None:
        window, cell = self._window, self._cell
        try:
            if cell.in_doubt:
                # Nobody may be readmitted while a lost write of ours could still take him out of the record (S4).
                self._check_open(await cell.settle(within_s=_DEGRADED_WITHIN_S))
            back = [bookie for bookie in list(window.absent.values()) if await self._answers(bookie)]
        except MetadataUnavailable:
            back = []
        except InvariantViolation:
            raise
        except BuckramError as error:
            self._writer.fail(self._ended(error))
            return
        finally:
            self._retrying = False
        if window.closed or window.changing or not window.absent:
            return
        moved = cell.metadata.last_fragment.ensemble != window.ensemble
        if moved or self._choose(window.ensemble, window.absent, {}, doomed=False):
            self._start()
            return
        positions = [p for p, bookie in window.absent.items() if bookie in back and not self._is_reborn(bookie)]
        if positions and not cell.in_doubt:
            for position in positions:
                self._watcher.report_ok(window.absent[position])
                self._awaited.pop(window.absent[position], None)
            members = [window.absent[position] for position in positions]
            sends = window.readmit(positions)
            self._after_resume("")
            self._writer.resend(sends)
            for bookie in members:
                self._lagging_members.returned(bookie)
        else:
            self._retry_later()

    async def _answers(self, bookie: BookieId) -> bool:
        """Return whether a bookie is registered as writable, has the same incarnation as when we chose it, and
        answers."""
        if bookie not in self._watcher.bookies.writable or self._is_reborn(bookie):
            return False
        try:
            reply = await self._pool.call(bookie, GetBookieInfo(), timeout_s=_PROBE_S)
        except BuckramError:
            return False
        return reply.code is Code.OK

    def _is_reborn(self, bookie: BookieId) -> bool:
        known, now = self._incarnations.get(bookie), self._watcher.incarnation(bookie)
        return known is not None and now is not None and known != now

    def _remember_incarnations(self) -> None:
        """Remember each member's incarnation from when it joined; one that told none then is held to the first that it
        tells."""
        known = self._incarnations
        self._incarnations = {
            b: known.get(b) or self._watcher.incarnation(b) for b in self._window.ensemble if b not in self._awaited
        }
