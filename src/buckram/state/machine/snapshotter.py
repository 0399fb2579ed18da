"""Snapshotter: decides when the leader takes a snapshot, and takes it beside the commands, one at a time.

Not here: writing and publishing it (`state/machine/snapshots.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from buckram.core.machine.fold import Fold, Prepared
from buckram.core.machine.snapshot_format import SnapshotHeader
from buckram.core.streams.policy import Policy
from buckram.errors import BuckramError, InvariantViolation, SnapshotFailed
from buckram.runtime.process.tasks import TaskScope
from buckram.state.machine.settings import MachineSettings
from buckram.state.machine.snapshots import LogHandle, free_space, write_snapshot
from buckram.types import LedgerId

_log = logging.getLogger("buckram.machine")
_MOST_SEGMENTS = 8
"""Maximum number of log segments behind the last snapshot; with more, a new leader takes one. Each leader begins a
segment, and a process that opens the machine must read all of them, however little they hold."""
_PUT_OFF = 10
"""Divisor of the distance to the next attempt after a failure: a tenth of that between two snapshots."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A snapshot that was not taken; the log is kept."""

    error: BuckramError


class Snapshotter:
    """Takes snapshots of one replica while it leads."""

    def __init__(
        self, place: LogHandle, policy: Policy, fold: Fold, settings: MachineSettings, scope: TaskScope
    ) -> None:
        self._place, self._policy, self._fold, self._settings, self._scope = place, policy, fold, settings, scope
        self._next_commands = self._next_bytes = 0
        self._task: asyncio.Task[int | Failed] | None = None
        self._last_bytes = 0
        """Size in bytes of the last snapshot that this process took, 0 before its first."""
        self._left: list[LedgerId] = []
        """Ledgers of the snapshots that left the head at the last publication."""
        self.count_on()

    def begin(self, segments: int) -> None:
        """Begin to count: this replica has the newest snapshot, with `segments` segments of the log behind it."""
        self.count_on()
        if segments > _MOST_SEGMENTS:
            self._next_commands = self._fold.commands

    def count_on(self, share: int = 1) -> None:
        """Schedule the next snapshot at the distance of the settings, divided by `share`, from the present state on.

        It is not due before the log has grown by as many bytes as the last one has: otherwise a large growing state
        would be written again and again, and writing snapshots would be most of the work.
        """
        fold, settings = self._fold, self._settings
        size = max(settings.snapshot_bytes, self._last_bytes)
        self._next_commands = fold.commands + max(settings.snapshot_commands // share, 1)
        self._next_bytes = fold.log_bytes + max(size // share, 1)

    @property
    def _busy(self) -> bool:
        # A task that was cancelled before it began has never run any code of its own.
        return self._task is not None and not self._task.done()

    @property
    def due(self) -> bool:
        """Return whether a snapshot should be taken now."""
        fold = self._fold
        return (fold.commands >= self._next_commands or fold.log_bytes >= self._next_bytes) and not self._busy

    def take(self, epoch: int) -> asyncio.Task[int | Failed]:
        """Take a snapshot of this moment, as the leader of this epoch; the task returns its offset.

        While one is being written, that one is returned.
        """
        if self._task is None or not self._busy:
            self.count_on()
            fold = self._fold
            try:
                chunks: Iterable[bytes] | Exception = fold.state.snapshot()
            except Exception as error:  # of user code: the log is kept, and the machine goes on
                chunks = error
            self._task = self._scope.spawn(
                self._write(epoch, fold.header(), fold.sessions.encode(), chunks), "snapshot"
            )
            if isinstance(chunks, Prepared):
                # A task that is cancelled before it begins never runs.
                self._task.add_done_callback(lambda done: chunks.close())
        return self._task

    def stop(self) -> None:
        """Stop at the end of the leadership: a snapshot that is not published yet will not be."""
        if self._task is not None:
            self._task.cancel()

    async def _write(
        self, epoch: int, header: SnapshotHeader, sessions: bytes, chunks: Iterable[bytes] | Exception
    ) -> int | Failed:
        place, keep = self._place, self._settings.keep_snapshots
        try:
            if isinstance(chunks, Exception):
                raise chunks
            before = (await place.streams.read(place.name)).head.snapshots or ()
            if before and before[-1].offset >= header.offset:
                return before[-1].offset  # Nothing was written since.
            if isinstance(chunks, Prepared):
                await chunks.ready()
            row = await write_snapshot(place, self._policy, epoch, header, sessions, chunks, keep)
            self._last_bytes = row.bytes
            self._next_bytes = max(self._next_bytes, header.log_bytes + row.bytes)
            gone, self._left = self._left, [row.ledger for row in before[: max(len(before) + 1 - keep, 0)]]
            await free_space(place, gone)
            return header.offset
        except InvariantViolation:
            raise
        except Exception as failed:
            error = failed if isinstance(failed, BuckramError) else SnapshotFailed(str(place.name), repr(failed))
            _log.warning("machine %s: a snapshot failed and the log is kept: %s", place.name, error)
            self.count_on(_PUT_OFF)
            return Failed(error)
