"""Everything that was gathered about a cluster at one moment, as plain values. Pure.

A default means that there is nothing to tell. What could not be asked is never a default: it is in `not_asked`.
Not here: gathering (`buckram/health/gathering.py`), judging (`core/health/findings.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from buckram.core.cluster.bookie_report import BookieReport
from buckram.core.healing.losses import Brake
from buckram.types import BookieId, LedgerId


@dataclass(frozen=True, slots=True)
class Noted:
    """That something is in a state: the state's name, where, why, and the values that its cure needs.

    `bookie`: the bookie that it is about, if it is about one.
    """

    state: str
    where: str
    why: str
    values: Mapping[str, str] = field(default_factory=dict)
    bookie: BookieId = ""


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """One bookie: what the metadata store says of it, and what it says itself."""

    id: BookieId
    state: str
    """ "writable", "readonly" or "down", as it is registered."""
    answers: bool = False
    """Whether a process answered for it, registered or not."""
    trouble: str = ""
    """Why it did not answer; empty where it did, or where nobody could be asked."""
    address: str = ""
    """Where it was asked."""
    incarnation: str = ""
    asked: str = ""
    """What an operator asks of it: "readonly", "maintenance", "drain"; empty: nothing."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    troubles: tuple[tuple[str, str], ...] = ()
    """What it says is wrong with it: what, and why."""
    report: BookieReport | None = None
    """None: it does not tell (Apache's), or did not answer."""
    file_system: int = 0
    """A number that bookies on the same file system share; 0: unknown."""
    sync_us: int = 0
    """The mean of a sync of its disk lately, in microseconds; 0: not known."""
    certain: bool | None = None
    """Whether it is certain of the time; None: it does not say."""
    clock_ahead_us: int | None = None
    """Its clock, minus that of whoever asked, when the answer came; None: it does not tell the time."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A bookie that does not believe the metadata store, and therefore is not registered."""

    bookie: BookieId
    address: str
    why: str


@dataclass(frozen=True, slots=True)
class LackingLedger:
    """One ledger that is marked as lacking copies. `state`: "in progress", "queued", "waiting" or "lost"."""

    ledger: LedgerId
    state: str
    why: str = ""
    age_s: float | None = None
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class HealingFacts:
    """The state of autorecovery."""

    enabled: bool = True
    auditor: str = ""
    brake: Brake | None = None
    queue: tuple[LackingLedger, ...] = ()
    misplaced: int = 0
    """Ledgers that the last check of the placement found where their policy does not want them."""


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """What a namespace uses of each quota that it has: (quota, used, limit)."""

    name: str
    quotas: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """A cursor below which a stream's policy truncates nothing. `moved_us`: when it was moved last."""

    stream: str
    cursor: str
    moved_us: int
    records: int
    """Records from it to the end of the last sealed segment."""


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """A streaming query that publishes to a stream. `pause_us`: the longest time between two of its batches lately."""

    stream: str
    application: str
    query: str
    batch: int
    committed_us: int
    pause_us: int = 0


@dataclass(frozen=True, slots=True)
class MirrorFacts:
    """A mirror, as its replication last wrote it down. `time_us`: when that was."""

    stream: str
    behind: int
    """Records of the source that it lacked then."""
    time_us: int
    trouble: str = ""
    """Why nothing is copied any more; empty while it is."""


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """What is written down of the backups of a database whose policy asks for them. Times are microseconds UTC."""

    database: str
    place: str
    every_s: float
    made_us: int
    """The state of the newest backup is of this time; 0: none was made."""
    since_us: int
    """Since when one could have been made."""
    trouble: str = ""
    """Why the last attempt failed; empty: it did not."""


@dataclass(frozen=True, slots=True)
class ForeignFacts:
    """A ledger, or files at a `location`, that a stream's metadata name and that are not the stream's.

    `time_us`: when a server last came upon it and left it as it is.
    """

    stream: str
    ledger: LedgerId
    time_us: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster at one moment."""

    now_us: int = 0
    """By the best clock that was known."""
    uri: str = ""
    unreachable: str = ""
    """Why the metadata store could not be asked; empty: it answered."""
    refusal: str = ""
    """Why the metadata store, which can be read, took no change now."""
    accepted: bool | None = True
    """Whether the metadata store's history is accepted; False after a restore, None where it could not be read."""
    moved: str = ""
    """That the metadata are being moved, or were, and what goes on (`core/cluster/history.py:why_not_accepted`)."""
    suspects: tuple[Suspect, ...] = ()
    bookies: tuple[BookieFacts, ...] = ()
    healing: HealingFacts | None = None
    shortages: tuple[tuple[str, str], ...] = ()
    """Levels of the placement that the bookies cannot give new ledgers, and why."""
    clock_doubt: str = ""
    """Why the clock of whoever asked is in doubt."""
    namespaces: tuple[NamespaceFacts, ...] = ()
    cursors: tuple[CursorFacts, ...] = ()
    queries: tuple[QueryFacts, ...] = ()
    mirrors: tuple[MirrorFacts, ...] = ()
    backups: tuple[BackupFacts, ...] = ()
    foreign: tuple[ForeignFacts, ...] = ()
    noted: tuple[Noted, ...] = ()
    """What was found to be in a state by whoever looked at single records: registrations, ledgers, leftovers."""
    not_asked: tuple[tuple[str, str], ...] = ()
    """What could not be asked, or not in time, and why."""

    def answers(self, bookie: BookieId) -> bool:
        """Whether a process answers for a bookie. One of which nothing is known counts as one that does."""
        known = [one for one in self.bookies if one.id == bookie]
        return not known or any(one.answers for one in known) or any(one.bookie == bookie for one in self.suspects)

    @property
    def doubting(self) -> tuple[BookieFacts, ...]:
        """The bookies that are in doubt of the time."""
        return tuple(one for one in self.bookies if one.certain is False)

    @property
    def time_doubted(self) -> bool:
        """Whether half of the bookies that judge the time are in doubt of it, or more."""
        return 0 < sum(one.certain is not None for one in self.bookies) <= 2 * len(self.doubting)


__all__ = [
    "BackupFacts",
    "BookieFacts",
    "CursorFacts",
    "Facts",
    "ForeignFacts",
    "HealingFacts",
    "LackingLedger",
    "MirrorFacts",
    "NamespaceFacts",
    "Noted",
    "QueryFacts",
    "Suspect",
]
