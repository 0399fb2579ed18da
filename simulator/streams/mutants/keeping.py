"""Planted bugs of truncation, janitors, deletion, bulk steps and clocks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from buckram.client.cluster.clocks import Clocks
from buckram.core.cluster.believed_time import BelievedTime, Moment
from buckram.core.cluster.wall_time import WallClocks
from buckram.core.streams.metadata import changes as stream_changes
from buckram.core.streams.names import StreamId
from buckram.streams.maintain import delete, janitor, orphans, truncate
from buckram.streams.maintain.janitor import Janitor
from buckram.streams.shared import ledgers
from buckram.streams.shared.ledgers import drop_ledger
from buckram.streams.write import bulk
from simulator.streams.mutants.base import Mutant, plant

_truncated, _published, _is_dead, _wanted = (
    stream_changes.truncated,
    stream_changes.published,
    stream_changes.is_dead,
    truncate.wanted_earliest,
)
_forget = truncate._forget


def _by_segment(name: str, head: Any, offset: int, known_end: int) -> Any:
    step = _truncated(name, head, offset, known_end)
    bases = [row.base for row in head.tail if head.earliest < row.base <= offset]
    return stream_changes.HeadStep(replace(step.head, earliest=bases[-1])) if step and bases else None


def _dead_when_touched(head: Any, segment: Any) -> bool:
    return bool(segment.sealed and segment.base < head.earliest)


async def _not_fenced(client: Any, name: Any, head: Any) -> None:
    """Do not fence the writer."""


def _producers_not_needed(head: Any, segment: Any) -> bool:
    return bool(segment.sealed and segment.end <= head.earliest)


async def _forget_first(client: Any, streams: Any, name: Any, *, at_most: int | None = None) -> int:
    head = (await streams.read(name)).head
    dead, kept = await truncate.dead_rows(streams, head, 64)
    if dead:
        await _forget(streams, name, head, dead[-1].number + 1, kept)
        for row in dead:
            await drop_ledger(client, streams, StreamId(name, head.uid), row.ledger)
    return len(dead)


async def _no_intents(*args: Any, **kwargs: Any) -> list[Any]:
    return []


async def _discard_unclaimed(client: Any, streams: Any, uid: str, intent: Any) -> bool:
    await drop_ledger(client, streams, StreamId(None, uid), intent.ledger)
    key = streams.layout.intent(uid, intent.ledger)
    seen = await ledgers.read_intent(streams, uid, intent.ledger)
    if seen is not None:
        await streams.keys.delete(key, seen.version)
    return True


async def _nothing_pending(streams: Any, item: Any) -> bool:
    return False


def _transaction_forgotten(name: str, head: Any, segments: Any, application: str, *args: Any, **kwargs: Any) -> Any:
    return _published(name, replace(head, transactions={}), segments, application, *args, **kwargs)


async def _never(self: Any) -> None:
    return None


async def _older_than_asked(client: Any, streams: Any, name: Any, head: Any, policy: Any, now: int | None) -> int:
    return await _wanted(client, streams, name, head, policy, None if now is None else now + 5_000_000)


async def _cursors_forgotten(streams: Any, head: Any) -> None:
    return None


async def _not_checked(self: Any, ledger: Any) -> Any:
    """Count one record too many in each ledger."""
    found = await _check(self, ledger)
    return found._replace(summary=found.summary._replace(records=found.summary.records + 1))


_check = bulk.Bulk._check


def _own_time(self: Any, own: int, mono: int) -> int:
    return own


def _certain(self: Any) -> Moment:
    wall = self._runtime.clock.wall_us()
    return Moment(wall, wall, wall)


def _at_once(self: Any, wall: int, mono: int) -> None:
    self._believe(wall - mono, mono)


async def _one_round(self: Any, report: Any) -> None:
    """Doubt a clock that was set since the last round, for this round, and go by it in the next one."""
    clock, loop = self._client.services.runtime.clock, asyncio.get_running_loop()
    ahead = clock.wall_us() - int(loop.time() * 1_000_000)
    before, _ahead_of_rounds[id(self)] = _ahead_of_rounds.get(id(self), ahead), ahead
    self._in_doubt = abs(ahead - before) > 60_000_000
    if self._in_doubt:
        report.problems.append(f"{janitor.BY_AGE}: the clock was set")


_ahead_of_rounds: dict[int, int] = {}


def _own_wall(self: Any, age_s: float | None) -> int | None:
    return None if self._in_doubt else self._client.services.runtime.clock.wall_us()


MUTANTS = (
    Mutant(
        "truncates-segments",
        "5",
        "truncation goes to the start of a segment",
        plant((truncate, "truncated", _by_segment)),
        drills=("truncate",),
    ),
    Mutant(
        "dead-when-touched",
        "5, 19",
        "a segment is deleted when its first record was truncated",
        plant((truncate, "is_dead", _dead_when_touched), (stream_changes, "is_dead", _dead_when_touched)),
        drills=("truncate",),
    ),
    Mutant(
        "producers-trimmed",
        "idempotence",
        "the segment with the producers' table is deleted like any other",
        plant((truncate, "is_dead", _producers_not_needed), (stream_changes, "is_dead", _producers_not_needed)),
        lives=lambda plan: plan.truncator,
        seeds=120,
    ),
    Mutant(
        "forgets-first",
        "25",
        "trimming removes segments from the list before it deletes their ledgers",
        plant((truncate, "trim", _forget_first), (janitor, "trim", _forget_first)),
        drills=("truncate",),
    ),
    Mutant(
        "delete-leaves-intents",
        "25",
        "deletion does not look for unlisted ledgers",
        plant((delete, "list_intents", _no_intents)),
        drills=("delete-after-death",),
    ),
    Mutant(
        "discard-unclaimed",
        "25",
        "a prepared ledger is deleted without a claim of its intent",
        plant(
            (ledgers, "discard", _discard_unclaimed),
            (janitor, "discard", _discard_unclaimed),
            (delete, "discard", _discard_unclaimed),
        ),
        drills=("janitor", "delete"),
    ),
    Mutant(
        "orphans-in-progress",
        "25",
        "a ledger that is about to be listed counts as an orphan",
        plant((orphans, "_has_intent", _nothing_pending)),
        lives=lambda plan: plan.janitor,
    ),
    Mutant(
        "transaction-forgotten",
        "lost replies",
        "a bulk step does not check whether it was already published",
        plant((bulk, "published", _transaction_forgotten), (bulk.Bulk, "published", _never)),
        drills=("bulk",),
        lives=lambda plan: plan.publisher,
    ),
    Mutant(
        "wrong-bases",
        "3",
        "a bulk step counts records that do not exist",
        plant((bulk.Bulk, "_check", _not_checked)),
        drills=("bulk",),
        lives=lambda plan: plan.publisher,
    ),
    Mutant(
        "delete-unfenced",
        "deletion",
        "a stream is deleted although its writer could not be fenced",
        plant((delete, "_fence", _not_fenced)),
        scenarios=("deleted-out-of-reach",),
    ),
    Mutant(
        "older-than-asked",
        "19",
        "retention truncates records that are five seconds too young",
        plant((truncate, "wanted_earliest", _older_than_asked)),
        lives=lambda plan: "retention_s" in plan.policy and plan.janitor,
        seeds=40,
    ),
    Mutant(
        "stamps-own-time",
        "72",
        "a writer stamps records with its own wrong clock",
        plant((WallClocks, "best", _own_time)),
        scenarios=("wrong-writer",),
    ),
    Mutant(
        "age-by-own-time",
        "72",
        "a janitor truncates by its own wrong clock",
        plant((Clocks, "moment", _certain)),
        scenarios=("wrong-janitor",),
    ),
    Mutant(
        "believes-at-once",
        "72",
        "a clock that was set is believed at once",
        plant((BelievedTime, "observe", _at_once)),
        scenarios=("wrong-janitor",),
    ),
    Mutant(
        "counts-rounds",
        "72",
        "a janitor waits for one round after its clock was set, however short that is",
        plant((Janitor, "_check_clocks", _one_round), (Janitor, "_now", _own_wall)),
        scenarios=("wrong-janitor",),
    ),
    Mutant(
        "cursors-forgotten",
        "19, 23",
        "retention does not respect cursors",
        plant((truncate, "lowest_cursor", _cursors_forgotten)),
        lives=lambda plan: bool(plan.policy.get("retention_cursors")) and plan.janitor,
        seeds=60,
    ),
)
