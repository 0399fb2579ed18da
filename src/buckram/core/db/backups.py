"""Backups by policy, the pure part: places, names of files, the record, which backups are due and which are removed.

A policy names a place, and the operator says where that is: whoever may set policies cannot have files written
anywhere. A file's name has the uid of its database, so that one that was made anew under a name neither counts the
backups of the old one nor removes them. Not here: making and verifying files (`state/db/backups.py`), which states of
health there are (`core/health/cluster_states.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from buckram.core.streams.external.history import UNFINISHED, check_location
from buckram.core.streams.json_values import is_int64
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy, check_place_name
from buckram.errors import ConfigError, InvalidArgument, MalformedRecord

SETTING = "[janitor] backup_places"
FORMAT = 1
_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = "%Y%m%dT%H%M%SZ"
_DIGITS = 16
"""Number of hexadecimal digits of a file's SHA-256 in its name."""
_FILE = re.compile(r"([0-9a-f]+)-([0-9]{20})-([0-9]{8}T[0-9]{6}Z)-([0-9a-f]{16})\.db")


class BackupFile(NamedTuple):
    """A file at a place. Sorted, they are in the order of the states that they have."""

    offset: int
    """Offset of the log below which the backup has everything."""
    time: int
    """When it was begun, microseconds UTC, by the second: it has everything that was committed before."""
    name: str
    digest: str
    """First hexadecimal digits of its SHA-256."""


class Backup(NamedTuple):
    """A backup that was verified at its place."""

    uid: str
    """Uid of the database."""
    place: str
    """The name of the place."""
    file: str
    """Name of the file, in the directory that `directory_of` returns."""
    offset: int
    bytes: int
    sha256: str
    """SHA-256 of the file, hexadecimal."""
    time: int
    """Time at which the backup was begun, as in BackupFile."""


@dataclass(frozen=True, slots=True)
class BackupRecord:
    """Record of a database's backups, so that their age is known without reading the place."""

    newest: Backup | None = None
    trouble: str = ""
    """Reason why the last attempt failed; empty if it did not."""
    since: int = 0
    """When the first attempt was, microseconds UTC."""


def encode_kept(kept: BackupRecord) -> bytes:
    newest = None if kept.newest is None else kept.newest._asdict()
    return json.dumps({"format": FORMAT, "newest": newest, "trouble": kept.trouble, "since": kept.since}).encode()


def decode_kept(key: str, data: bytes) -> BackupRecord:
    """Parse the record of a database's backups. Raises MalformedRecord, which names the key."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise MalformedRecord(f"{key}: format {raw['format']!r}, this version of buckram knows {FORMAT}")
        newest = None if raw["newest"] is None else Backup(**raw["newest"])
        numbers = [raw["since"], *((newest.offset, newest.bytes, newest.time) if newest is not None else ())]
        if not all(map(is_int64, numbers)):
            raise TypeError("a number is none")
        return BackupRecord(newest, str(raw["trouble"]), raw["since"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not what is known of a database's backups ({error!r}); delete it") from None


# -- places -----------------------------------------------------------------------------------------------


def parse_places(text: str) -> dict[str, str]:
    """Return locations by the names of places, from NAME=LOCATION pairs between spaces. Raises ConfigError."""
    found: dict[str, str] = {}
    for word in text.split():
        name, equals, location = word.partition("=")
        try:
            if not equals:
                raise InvalidArgument(f"{word!r}: needs NAME=LOCATION")
            if check_place_name(name) in found:
                raise InvalidArgument(f"{name!r} is there twice; give each place once")
            found[name] = check_location(location, name)
        except InvalidArgument as error:
            raise ConfigError(f"{SETTING}: {error}") from None
    return found


def location_of(name: StreamName, policy: Policy, places: Mapping[str, str]) -> str:
    """Return the location of the place that a policy names. Raises InvalidArgument if the operator has not listed
    one.
    """
    cure = f"`buckram stream set {name} --set backup_to=PLACE`"
    if not policy.backup_to:
        raise InvalidArgument(f"its policy has backup_every_s, and backup_to names no place: {cure} names one")
    if policy.backup_to not in places:
        known = ", ".join(sorted(places)) or "none"
        raise InvalidArgument(
            f"its policy has backup_to = {policy.backup_to!r}, and the janitor has no place of this name (it has: "
            f"{known}): an operator adds {policy.backup_to}=LOCATION to {SETTING}, or {cure} names another one"
        )
    return places[policy.backup_to]


def directory_of(location: str, name: StreamName) -> str:
    """Return the directory of a database's backups below the location of a place."""
    return f"{location.rstrip('/')}/{name.namespace}/{name.stream}"


# -- files ------------------------------------------------------------------------------------------------


def file_name(uid: str, offset: int, time_us: int, sha256: str) -> str:
    """Return the name of a backup's file: names of one database sort in the order of its states."""
    begun = (_EPOCH + timedelta(microseconds=time_us)).strftime(_STAMP)
    return f"{uid}-{offset:020d}-{begun}-{sha256[:_DIGITS]}.db"


def files_of(uid: str, names: Iterable[str]) -> list[BackupFile]:
    """Return the files that are backups of the database with this uid, the oldest first."""
    found: list[BackupFile] = []
    for name in names:
        match = _FILE.fullmatch(name)
        if match is None or match[1] != uid:
            continue
        try:
            begun = datetime.strptime(match[3], _STAMP).replace(tzinfo=UTC)
        except ValueError:
            continue
        found.append(BackupFile(int(match[2]), (begun - _EPOCH) // timedelta(microseconds=1), name, match[4]))
    return sorted(found)


def unfinished_of(uid: str, names: Iterable[str]) -> list[str]:
    """Return the unfinished files of backups of the database that killed processes left."""
    return [name for name in names if name.startswith(f".{uid}-") and name.endswith(UNFINISHED)]


def superseded(files: Iterable[BackupFile], keep: int, recorded: str) -> list[str]:
    """Return the names of the files that newer ones have replaced; never that of the recorded one."""
    ordered = sorted(files)
    return [one.name for one in ordered[: max(len(ordered) - max(keep, 1), 0)] if one.name != recorded]


# -- when -------------------------------------------------------------------------------------------------


def is_old(time: int, every_s: float, now: int | None, certain: int | None) -> bool:
    """Return whether a backup of this time is older than the interval, or has a time in the future.

    `now` is the time by which ages are judged, `certain` the time itself, in microseconds UTC; both are None while in
    doubt. Then nothing is old (T2), since new backups push out those that people may need.
    """
    if now is not None and now - time >= every_s * _US:
        return True
    return certain is not None and time - certain >= every_s * _US


def is_due(kept: BackupRecord, policy: Policy, now: int | None, certain: int | None) -> bool:
    """Return whether the policy wants a backup now. Backups at a place other than the policy's do not count."""
    newest = kept.newest
    if newest is None or newest.place != policy.backup_to:
        return True
    return is_old(newest.time, policy.backup_every_s, now, certain)
