"""Committing: writes groups of pages into the log as the leader, and reports the outcome of each.

Not here: computing them (`state/db/table_engine/engine.py`), applying them (`state/db/commits/state_machine.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from buckram.core.db.group import cut
from buckram.core.db.outcomes import OwnToken
from buckram.core.machine.records import COMMAND_OVERHEAD
from buckram.core.machine.sessions import CommandToken, Forgotten, Outcome, Sequences
from buckram.errors import (
    BuckramError,
    CommandForgotten,
    CommandUnknown,
    CommitUnknown,
    DatabaseBusy,
    HandleClosed,
    NotLeader,
    ReplicaStopped,
)
from buckram.errors.state import limit_named
from buckram.runtime.process.tasks import TaskScope
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.db.table_engine.execution import Pending
from buckram.state.machine.leader import Leader, Result
from buckram.state.machine.replica import Replica

_PART_BYTES = 512 * 1024
_PARTS_AHEAD = 8


class Committing:
    """The log of one database, for the process that leads."""

    def __init__(self, replica: Replica, state: DatabaseState, scope: TaskScope) -> None:
        self._replica, self._state, self._scope = replica, state, scope
        self._leader: Leader | None = None
        self._sequences: Sequences | None = None
        self._opening = asyncio.Lock()
        self.leader = replica.leading
        """Returns the leader object of this process; a later leadership has another one. Raises NotLeader."""

    async def leadership(self) -> tuple[int, Leader]:
        """Return the number of the present leadership, once all groups before it are in the engine's queue, and the
        leader object of this moment.

        Raises NotLeader.
        """
        leader = await self._replica.leading()
        if leader is not self._leader or self._sequences is None:
            async with self._opening:
                if leader is not self._leader or self._sequences is None:
                    self._sequences = Sequences(await leader.open_session())
                    self._leader = leader
            leader = await self._replica.leading()  # the leadership may have ended meanwhile
        return self._sequences.session, leader

    @property
    def sequence(self) -> int:
        """The number of groups that are committed, as far as this replica knows."""
        return self._state.sequence

    async def prove(self) -> None:
        """Wait until it is proven that no other process led when this was called. Raises NotLeader."""
        await self._replica.prove()

    @property
    def leads(self) -> bool:
        """Return whether this process leads, as far as it knows. Any thread."""
        return self._replica.leads

    def counts(self, token: str) -> str | None:
        """Return the counts committed under a caller's token, None if this replica knows of no such commit."""
        return self._state.outcomes.counts(token)

    def full(self) -> DatabaseBusy | None:
        """Return DatabaseBusy if tokens, which are kept for a day, have reached their memory limit; else None.

        For the process that leads.
        """
        limit, leader = self._state.engine.limits.token_bytes, self._leader
        now = max(self._replica.fold.time_us, leader.engine.moment().earliest) if leader is not None else 0
        count = self._state.outcomes.full(now, limit)
        if not count:
            return None
        text = f"{count} tokens of the last 24 hours take {limit} bytes or more; commit without a token, or later"
        return DatabaseBusy(self._state.database, f"{text} ({limit_named('token_bytes')})")

    def own_token(self, pending: Pending) -> str:
        """Return the token under which any process can look up the outcome of a group."""
        return str(OwnToken(self._replica.place.uid, pending.leadership, pending.sequence))

    def commit(self, pending: Pending) -> None:
        """Write a group into the log, and call its `decide` in any case."""
        self._state.pending = pending
        try:
            self._scope.spawn(self._write(pending), "commit")
        except RuntimeError:
            pending.decide(HandleClosed(f"database {self._state.database}: it is closed; open it again"))

    async def _write(self, pending: Pending) -> None:
        error: BuckramError | None = None
        try:
            error = await self._append(pending)
        except asyncio.CancelledError:
            error = self._unknown(pending, "the database was closed")
            raise
        except BaseException:
            error = NotLeader(self._state.database, "")
            raise
        finally:
            # If the group was applied meanwhile, that has decided, and this changes nothing.
            pending.decide(error)
            if self._state.pending is pending:
                self._state.pending = None

    async def write(self, pending: Pending) -> None:
        """Write a group that no open transaction holds; it is applied like a group of another process.

        Raises NotLeader, CommitUnknown.
        """
        error = await self._append(pending)
        if error is not None:
            raise error

    async def _append(self, pending: Pending) -> BuckramError | None:
        """Append a group to the log; return the error because of which it was not committed, None if it was."""
        own = self._sequences
        if own is None or own.session != pending.leadership:
            return NotLeader(self._state.database, "")
        try:
            leader = await self._replica.leading()
            if leader is not self._leader:
                return NotLeader(self._state.database, "")
            limit = min(leader.engine.max_record_bytes - COMMAND_OVERHEAD, _PART_BYTES)
            parts = cut(pending.payload, pending.leadership, pending.sequence, limit)
            outcome = await self._send(leader, own, parts)
        except CommandUnknown as error:
            return self._unknown(pending, error.reason)
        except (ReplicaStopped, CommandForgotten) as error:
            return self._unknown(pending, str(error))
        except BuckramError as error:
            return error
        return NotLeader(self._state.database, "") if outcome.refused else None

    async def _send(self, leader: Leader, own: Sequences, parts: Iterable[bytes]) -> Outcome:
        """Write all parts, a few ahead of those that are acknowledged; return the outcome of the last one.

        Raises the errors of `Replica.execute`; if a part was not sent, none of the later parts was.
        """
        flying: deque[tuple[CommandToken, asyncio.Future[Result]]] = deque()
        outcome: Outcome | None = None
        try:
            for part in parts:
                if len(flying) >= _PARTS_AHEAD:
                    outcome = await self._acknowledged(own, flying)
                if not leader.has_room:
                    await leader.room()
                token = own.take()
                flying.append((token, leader.command(token, own.lowest, part)))
            while flying:
                outcome = await self._acknowledged(own, flying)
        finally:
            for token, future in flying:
                own.done(token)
                future.cancel()
        assert outcome is not None, "a group has a part"
        return outcome

    async def _acknowledged(
        self, own: Sequences, flying: deque[tuple[CommandToken, asyncio.Future[Result]]]
    ) -> Outcome:
        """Wait for the acknowledgement of the oldest part in flight and return its outcome."""
        token, future = flying[0]
        result = await future
        flying.popleft()
        own.done(token)
        if isinstance(result, Forgotten):
            raise CommandForgotten(self._state.database, token.text(self._replica.place.uid), result.message)
        return result

    def _unknown(self, pending: Pending, reason: str) -> CommitUnknown:
        return CommitUnknown(self._state.database, self.own_token(pending), reason)
