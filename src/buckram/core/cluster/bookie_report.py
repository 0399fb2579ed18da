"""Report of a bookie for operators: release, descriptors, connections, and what its garbage collection keeps. Pure.

It is a JSON object in the reply to Buckram's own request REPORT (`core/wire/messages.py`). Bookies that share a file
system are detected by their reports, so that its space is counted once.

Not here: collecting these facts (`bookie/report.py`), judging them (`core/health/bookie_states.py`).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any, Final

from buckram.errors import MalformedRecord
from buckram.types import BookieId


class Keeps(enum.StrEnum):
    """Kinds of reasons for which a bookie keeps bytes that nobody needs."""

    MOSTLY_ALIVE = "mostly-alive"
    """Dead bytes in log files that are mostly alive."""
    TO_BE_REWRITTEN = "to-be-rewritten"
    """Dead bytes in log files that are mostly dead and were not rewritten yet, or cannot be."""
    NOT_SEALED = "not-sealed"
    """Dead bytes in the log file being written, or in one that waits for its index."""
    SECOND_LOOK = "second-look"
    """Ledgers missing from the metadata, not yet confirmed by a second look."""
    RECORDED = "recorded"
    """Ledgers whose deletion is recorded; the next look at the records releases them."""
    MOVED = "moved"
    """Copies that the metadata place on other bookies, not yet confirmed by a second look."""
    BRAKE = "brake"
    """Ledgers missing from the metadata: too many to delete without confirmation, or the first ones after a restore."""
    UNKNOWN_IDS = "unknown-ids"
    """Ledgers with ids that the metadata store never issued."""
    UNTRUSTED = "untrusted"
    """All bytes: nothing may be deleted, because the metadata store has lost state that it had confirmed."""


@dataclass(frozen=True, slots=True)
class KeptGarbage:
    """Bytes that nobody needs and that a bookie keeps. `why` is a sentence; `bytes` is None if not counted."""

    kind: str
    why: str
    bytes: int | None
    ledgers: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of one garbage collection of a bookie.

    `bytes_reclaimable` could be freed after the deletions, `bytes_reclaimed` of them were, and `kept` lists the rest.
    """

    ledgers: int
    """Ledgers that were deleted from the bookie."""
    bytes_reclaimable: int
    bytes_reclaimed: int
    kept: tuple[KeptGarbage, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "ledgers": self.ledgers,
            "bytes_reclaimable": self.bytes_reclaimable,
            "bytes_reclaimed": self.bytes_reclaimed,
            "kept": [asdict(one) for one in self.kept],
        }


def parse_collected(where: str, record: object) -> Collected:
    """Parse what `as_json` made; fields of later releases are ignored. Raises MalformedRecord, which names `where`."""
    try:
        assert isinstance(record, dict)
        kept = tuple(
            KeptGarbage(
                str(one["kind"]),
                str(one["why"]),
                None if one["bytes"] is None else int(one["bytes"]),
                int(one["ledgers"]),
            )
            for one in record["kept"]
        )
        sums = [int(record[name]) for name in ("ledgers", "bytes_reclaimable", "bytes_reclaimed")]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise MalformedRecord(f"{where}: no account of a collection ({error!r})") from None
    return Collected(sums[0], sums[1], sums[2], kept)


@dataclass(frozen=True, slots=True)
class ExpiredToken:
    """A token that was shown after it had expired: whose it is, and when it was shown last (seconds since 1970)."""

    subject: str
    seen_s: int


@dataclass(frozen=True, slots=True)
class BookieReport:
    """A bookie at one moment. A default means that the bookie did not say."""

    version: str = ""
    state: str = ""
    open_files: int = 0
    """Descriptors that its process has open; 0: unknown."""
    most_files: int = 0
    """Maximum of open descriptors; 0: unknown."""
    connections: int = 0
    most_connections: int = 0
    collections: int = 0
    """Rounds of collection since its start."""
    collected_ledgers: int = 0
    collected_bytes: int = 0
    """Ledgers deleted and bytes freed by all collections since its start."""
    added_entries: int = 0
    """Entries, and their bytes on the wire, that it acknowledged and sent to readers since its start."""
    added_bytes: int = 0
    read_entries: int = 0
    read_bytes: int = 0
    collection: Collected | None = None
    """Result of the newest collection; None before the first one."""
    wall_us: int = 0
    """Its clock, in microseconds since 1970; 0: unknown."""
    time_is: str = ""
    """ "certain" or "doubt": what it holds of its clock; empty: it does not judge it."""
    time_doubt: str = ""
    """Description of the doubt; empty if there is none."""
    readonly_why: str = ""
    """Reason why the bookie is read-only, if its disk is the reason."""
    reserved_bytes: int = 0
    writable_again_bytes: int = 0
    """Free bytes below which it takes no new entries, and from which on it takes them again."""
    witness_refusal: str = ""
    """Reason why its witness key could not be written last; empty if it was."""
    metadata_refusal: str = ""
    """Reason why the metadata store refused its last change although it answers; empty if it did not."""
    certificate: str = ""
    certificate_ends_s: int = 0
    """The file of the certificate that it shows, and when that ends (seconds since 1970); 0: it shows none."""
    expired_tokens: tuple[ExpiredToken, ...] = ()

    def encode(self) -> bytes:
        record = asdict(self) | {"collection": None if self.collection is None else self.collection.as_json()}
        return json.dumps(record, separators=(",", ":")).encode()


def parse_report(bookie: BookieId, value: bytes) -> BookieReport:
    """Parse a report; fields of later releases are ignored. Raises MalformedRecord for anything else."""
    where = f"the report of bookie {bookie}"
    try:
        record = json.loads(value)
        assert isinstance(record, dict)
        plain = {name: kind(record[name]) for name, kind in _PLAIN.items() if name in record}
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise MalformedRecord(f"{where}: {error!r}") from None
    collection = record.get("collection")
    return BookieReport(
        **plain,
        collection=None if collection is None else parse_collected(where, collection),
        expired_tokens=_parse_tokens(where, record.get("expired_tokens", ())),
    )


def _parse_tokens(where: str, record: object) -> tuple[ExpiredToken, ...]:
    try:
        assert isinstance(record, list | tuple)
        return tuple(ExpiredToken(str(one["subject"]), int(one["seen_s"])) for one in record)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise MalformedRecord(f"{where}: no list of expired tokens ({error!r})") from None


_PLAIN: dict[str, Any] = {
    field.name: {"str": str, "int": int}[str(field.type)]
    for field in fields(BookieReport)
    if str(field.type) in ("str", "int")
}


# -- bookies that share a file system -------------------------------------------------------------------------

FILE_SYSTEM_FIGURE: Final = "file_system"
"""The figure of a bookie's answer (`GetBookieInfo`) that has the number of its file system."""


def file_system_number(identity: str) -> int:
    """Return a number for the file system of a `Disk.identity()`, which no other machine or file system has; 0:
    unknown.
    """
    boot, _, rest = identity.partition(" ")
    device = rest.partition(" ")[0]
    if not device:
        return 0
    return int.from_bytes(blake2b(f"{boot} {device}".encode(), digest_size=8).digest(), "big") >> 1


def file_system_space(bookies: Iterable[tuple[str, int, int | None, int | None]]) -> tuple[int, int]:
    """Return free and total bytes of bookies, each given by id, number of its file system, free and total bytes."""
    free: dict[str | int, int] = {}
    total: dict[str | int, int] = {}
    for bookie, number, free_bytes, total_bytes in bookies:
        where = number or bookie
        # The bookies answered one after the other, and free space may have changed in between.
        free[where] = min(free.get(where, free_bytes or 0), free_bytes or 0)
        total[where] = max(total.get(where, 0), total_bytes or 0)
    return sum(free.values()), sum(total.values())
