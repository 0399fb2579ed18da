"""Observers of the index and of writers during a life, which wrap some of their methods, and smaller limits for them.

Planted bugs are applied before, so the rules observe their effects. Not here: the rules themselves (`rules.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from buckram.core.machine.fold import Applied, Fold
from buckram.core.machine.records import CommandRecord
from buckram.core.machine.sessions import Forgotten, Outcome
from buckram.core.machine.snapshot_format import SnapshotHeader
from buckram.core.objects.index import ObjectIndex
from buckram.errors import CommandRefused
from buckram.state.machine.machine import ClassState
from buckram.state.objects import garbage_collection, index_client, objects, values, writing
from buckram.state.objects.garbage_collection import Sweeper
from buckram.state.objects.objects import Objects
from buckram.state.objects.presence import present_writers
from buckram.state.objects.writing import LedgerMaker, Made
from buckram.streams.shared.metadata import StreamStore
from simulator.engine.loop import PROCESS
from simulator.engine.planting import patched
from simulator.engine.world import World
from simulator.objects.plan import Sizes
from simulator.objects.rules import NAME, Rules


@contextmanager
def small_limits(sizes: Sizes) -> Iterator[None]:
    """Make limits so small that few bytes and seconds reach what large ones do."""
    with patched(
        *((module, "SMALL_BYTES", sizes.small) for module in (writing, values, objects)),
        (writing, "CHUNK_BYTES", sizes.chunk),
        (writing, "PACK_BYTES", sizes.pack),
        (writing, "ENTRY_BYTES", sizes.entry),
        (garbage_collection, "SWEEP_S", sizes.sweep_s),
        (garbage_collection, "GRACE_S", sizes.grace_s),
        (garbage_collection, "SEARCH_S", sizes.search_s),
        (index_client, "TURN_S", sizes.turn_s),
    ):
        defaults = Sweeper.sweep.__defaults__
        Sweeper.sweep.__defaults__ = (sizes.grace_s,)
        try:
            yield
        finally:
            Sweeper.sweep.__defaults__ = defaults


@contextmanager
def watch_objects(world: World, rules: Rules, living: Callable[[], Iterable[Objects]]) -> Iterator[None]:
    """Tell the rules what each replica of the index executes and restores, and count what writers meet."""
    apply, command, fold_apply, restore = ObjectIndex.apply, Fold.command, Fold.apply, Fold.restore
    not_wanted = LedgerMaker._not_wanted
    at = -1

    def host() -> str:
        return PROCESS.get(world.loop.world).name

    def watched_apply(self: ObjectIndex, given: Any) -> Any:
        try:
            result = apply(self, given)
        except CommandRefused as refusal:
            if at >= 0:
                rules.executed(host(), self, at, given, None, str(refusal).partition(":")[0])
            raise
        if at >= 0:
            rules.executed(host(), self, at, given, result, "")
        return result

    def watched_command(self: Fold, offset: int, record: CommandRecord, size: int) -> Outcome | Forgotten:
        nonlocal at
        at = offset if self.machine == NAME else -1
        return command(self, offset, record, size)

    def watched_fold(self: Fold, offset: int, value: bytes | None) -> Applied:
        nonlocal at
        at = offset if self.machine == NAME else -1
        return fold_apply(self, offset, value)

    def watched_restore(self: Fold, header: SnapshotHeader, sessions: bytes, chunks: Iterable[bytes]) -> None:
        restore(self, header, sessions, chunks)
        if self.machine == NAME and isinstance(self.state, ClassState):
            rules.restored(host(), self.state.instance, header.offset)

    def watched_not_wanted(self: LedgerMaker, making: asyncio.Task[Made]) -> None:
        world.report.situation("a put was cancelled as its ledger began")
        not_wanted(self, making)

    async def watched_present(streams: StreamStore, uid: str) -> dict[str, None]:
        found = await present_writers(streams, uid)
        open_now = rules.reference.writers.values()
        writers = [handle._maker.presence.name for handle in living()]
        if any(name in open_now and name not in found for name in writers):
            world.report.situation("a writer passed for gone while it lived")
        return found

    with patched(
        (garbage_collection, "present_writers", watched_present),
        (ObjectIndex, "apply", watched_apply),
        (Fold, "command", watched_command),
        (Fold, "apply", watched_fold),
        (Fold, "restore", watched_restore),
        (LedgerMaker, "_not_wanted", watched_not_wanted),
    ):
        yield


__all__ = ["small_limits", "watch_objects"]
