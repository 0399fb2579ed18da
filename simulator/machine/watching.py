"""Observers of folds, leaders and replicas during a life, which wrap some of their methods.

Planted bugs are applied before, so the rules observe their effects. Not here: the rules themselves (`rules.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from buckram.core.machine import records
from buckram.core.machine.fold import Applied, Fold
from buckram.core.machine.records import CommandRecord
from buckram.core.machine.sessions import Forgotten, Outcome
from buckram.core.machine.snapshot_format import SnapshotHeader
from buckram.errors import BuckramError, HandleClosed, OffsetTruncated, ReplicaStopped
from buckram.state.machine import freshness, replica
from buckram.state.machine.leader import Leader
from buckram.state.machine.replica import Replica
from buckram.state.machine.snapshots import LogHandle
from buckram.streams.read.reader import StreamReader
from simulator.engine.loop import PROCESS
from simulator.engine.planting import patched
from simulator.engine.world import World
from simulator.machine.rules import Rules


@contextmanager
def watch_machines(world: World, rules: Rules) -> Iterator[None]:
    """Tell the rules what each replica applies and restores, and why it stops."""
    stop, fail, send, load = Replica._stop, Leader.fail, Leader._send, freshness.load
    next_batch = StreamReader.next_batch

    def host() -> str:
        return PROCESS.get(world.loop.world).name

    def watched_stop(self: Replica, error: BuckramError) -> None:
        first = self._failure is None
        stop(self, error)
        if first and isinstance(error, ReplicaStopped):
            rules.stopped(host(), error)
        if first and not isinstance(error, HandleClosed):
            world.trace.note(host(), f"replica stops: {error}")

    def watched_fail(self: Leader, error: BuckramError) -> None:
        if not self.ended.done():
            world.trace.note(host(), f"leads no more: {error!r}")
            if self.engine.lost.is_set():
                world.report.situation("a leader was fenced")
        fail(self, error)

    def watched_send(self: Leader) -> None:
        alone = not self._batch and bool(self._proofs)
        send(self)
        if alone and self._sent:
            world.report.situation("a read waited for its proof alone")

    async def watched_load(place: LogHandle, fold: Fold) -> freshness.Begun:
        begun = await load(place, fold)
        for error in begun.damaged:
            world.trace.note(host(), str(error))
            world.report.situation("a damaged snapshot was passed over")
        return begun

    async def watched_next(self: StreamReader) -> object:
        try:
            return await next_batch(self)
        except OffsetTruncated:
            world.report.situation("a follower fell behind the log")
            raise

    with (
        _watch_folds(world, rules, host),
        patched(
            (Replica, "_stop", watched_stop),
            (Leader, "fail", watched_fail),
            (Leader, "_send", watched_send),
            (replica, "load", watched_load),
            (StreamReader, "next_batch", watched_next),
        ),
    ):
        yield


def _watch_folds(world: World, rules: Rules, host: Callable[[], str]) -> AbstractContextManager[None]:
    """Watch each applied command, by a method of its own: the leader has commands already, other replicas read them."""
    apply, command, restore = Fold.apply, Fold.command, Fold.restore

    def watched_apply(self: Fold, offset: int, value: bytes | None) -> Applied:
        done = apply(self, offset, value)
        if done.kind == records.DIGEST and self.agreed is not None:
            world.report.situation("a digest was compared")
        if done.kind != records.COMMAND:
            rules.applied(host(), self, offset, value, done)
        return done

    def watched_command(self: Fold, offset: int, record: CommandRecord, size: int) -> Outcome | Forgotten:
        outcome = command(self, offset, record, size)
        value = records.encode_command(record)
        rules.applied(host(), self, offset, value, Applied(records.COMMAND, outcome))
        return outcome

    def watched_restore(self: Fold, header: SnapshotHeader, sessions: bytes, chunks: Iterable[bytes]) -> None:
        restore(self, header, sessions, chunks)
        rules.restored(host(), self)

    return patched(
        (Fold, "apply", watched_apply), (Fold, "command", watched_command), (Fold, "restore", watched_restore)
    )


__all__ = ["watch_machines"]
