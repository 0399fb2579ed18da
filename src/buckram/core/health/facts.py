"""Facts about a cluster that were gathered at one moment, as plain values. Pure.

A default means that there is nothing to report. A fact that could not be gathered is listed in `not_asked` instead.
Not here: gathering (`buckram/health/gathering.py`), judging (`core/health/findings.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from buckram.core.cluster.bookie_report import BookieReport
from buckram.core.healing.lost_bookies import HealingBrake
from buckram.errors import BuckramError
from buckram.types import BookieId, LedgerId


@dataclass(frozen=True, slots=True)
class Noted:
    """One thing that is in a state of the table: the name of the state, the place, the reason, and the values that the
    text of its cure needs.

    `bookie`: the bookie that it concerns; "" if it concerns none.
    """

    state: str
    where: str
    why: str
    values: Mapping[str, str] = field(default_factory=dict)
    bookie: BookieId = ""


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """One bookie, as the metadata store describes it, and as it describes itself."""

    id: BookieId
    state: str
    """Its registration: "writable" or "readonly"; "down" without one."""
    answers: bool = False
    """True if a process answered for it, registered or not."""
    trouble: str = ""
    """Reason why it did not answer, or why its report cannot be read; empty: neither, or no address of it is known."""
    address: str = ""
    """Address at which it was asked."""
    incarnation: str = ""
    asked: str = ""
    """Wish of an operator that holds for it: "readonly", "maintenance" or "drain"; empty: none."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    troubles: tuple[tuple[str, str], ...] = ()
    """Troubles that it reports of itself, each with the reason."""
    report: BookieReport | None = None
    """Its report of itself; None: it gives none (Apache's bookies), or did not answer."""
    file_system: int = 0
    """Number that is equal for bookies on the same file system; 0: unknown."""
    sync_us: int = 0
    """Recent mean duration of a sync of its disk, in microseconds; 0: unknown."""
    certain: bool | None = None
    """False while it doubts the time; None: it does not report that."""
    clock_ahead_us: int | None = None
    """Its clock minus the clock of the asking process, when the answer came; None: it does not report its clock."""
    refused: BuckramError | None = None
    """Its refusal of the asking process, which has not logged in; None: it did not refuse it."""


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
    brake: HealingBrake | None = None
    queue: tuple[LackingLedger, ...] = ()
    misplaced: int = 0
    """Number of ledgers that break their placement policy, by the last check of it."""


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """Usage of one namespace: a row (quota, used, limit) for each quota that it has."""

    name: str
    quotas: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """A cursor below which a stream's policy truncates nothing. `moved_us`: time of its last move."""

    stream: str
    cursor: str
    moved_us: int
    records: int
    """Number of records from the cursor to the end of the last sealed segment."""


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
    """A mirror, as its replication last recorded it, at `time_us`."""

    stream: str
    behind: int
    """Number of records of the source that it lacked then."""
    time_us: int
    trouble: str = ""
    """Reason why copying has stopped; empty while it goes on."""


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """Recorded state of the backups of a database whose policy asks for them. Times are in microseconds UTC."""

    database: str
    place: str
    every_s: float
    made_us: int
    """Time of the database's state in the newest backup; 0: none was made."""
    since_us: int
    """Time since which a backup could have been made."""
    trouble: str = ""
    """Reason why the last attempt failed; empty: it succeeded."""


@dataclass(frozen=True, slots=True)
class ForeignFacts:
    """A ledger, or files at a `location`, that a stream's metadata name although they are not the stream's.

    `time_us`: when a server last found it and left it untouched.
    """

    stream: str
    ledger: LedgerId
    time_us: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster at one moment."""

    now_us: int = 0
    """Time of the facts, by the best clock that was known."""
    uri: str = ""
    unreachable: str = ""
    """Reason why the metadata store could not be asked; empty: it answered."""
    refusal: str = ""
    """Reason why the metadata store, although it can be read, took no change; empty: it takes changes."""
    accepted: bool | None = True
    """True if the history of the metadata store is accepted; False after a restore; None: it could not be read."""
    moved: str = ""
    """Sentence that says that the metadata are being moved, or were (`core/cluster/store_history.py:why_not_accepted`);
    empty: they are not."""
    suspects: tuple[Suspect, ...] = ()
    bookies: tuple[BookieFacts, ...] = ()
    healing: HealingFacts | None = None
    shortages: tuple[tuple[str, str], ...] = ()
    """Levels of the placement that the bookies cannot give new ledgers, and why."""
    clock_doubt: str = ""
    """Reason why the clock of the asking process is in doubt; empty: it is not."""
    namespaces: tuple[NamespaceFacts, ...] = ()
    cursors: tuple[CursorFacts, ...] = ()
    queries: tuple[QueryFacts, ...] = ()
    mirrors: tuple[MirrorFacts, ...] = ()
    backups: tuple[BackupFacts, ...] = ()
    foreign: tuple[ForeignFacts, ...] = ()
    noted: tuple[Noted, ...] = ()
    """States that were found while gathering, in single records: registrations, ledgers, leftovers."""
    not_asked: tuple[tuple[str, str], ...] = ()
    """Facts that could not be gathered, or not in time, each with the reason."""

    def answers(self, bookie: BookieId) -> bool:
        """Return whether a process answers for a bookie; True for a bookie of which nothing is known."""
        known = [one for one in self.bookies if one.id == bookie]
        return not known or any(one.answers for one in known) or any(one.bookie == bookie for one in self.suspects)

    @property
    def doubting(self) -> tuple[BookieFacts, ...]:
        """Return the bookies that are in doubt of the time."""
        return tuple(one for one in self.bookies if one.certain is False)

    @property
    def time_doubted(self) -> bool:
        """Return whether at least half of the bookies that judge the time are in doubt of it."""
        return 0 < sum(one.certain is not None for one in self.bookies) <= 2 * len(self.doubting)
