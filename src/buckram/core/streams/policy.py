"""Settings of a namespace or stream: quorums, digest, rolling, retention, compression, idempotence.

A stream's settings lie over its namespace's, which lie over the defaults; only what was set is stored. Retention
deletes nothing unless it is set. Not here: carrying a policy out (`streams/maintain/retention`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.streams.external.history import check_location
from buckram.core.streams.records.codecs import CODECS
from buckram.errors import InvalidArgument
from buckram.types import DigestType

MIB = 1024 * 1024
_DIGESTS = {"crc32": DigestType.CRC32, "crc32c": DigestType.CRC32C, "mac": DigestType.MAC, "dummy": DigestType.DUMMY}
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NULLABLE = ("retention_s", "retention_bytes", "offload_after_s", "offload_bytes")


@dataclass(frozen=True, slots=True)
class Policy:
    """All settings in force. None for a retention: nothing is deleted for that reason."""

    ensemble: str = "3/3/2"
    """E/Qw/Qa of new segments."""
    digest: str = "crc32c"
    placement: str = ""
    """Where the copies of new segments go, such as `rack:2:2 enforce`; empty: as the writing client is set."""
    roll_bytes: int = 1024 * MIB
    roll_s: float = 86_400.0
    retention_s: float | None = None
    """Records older than this (append time) are truncated by the janitor, the open segment's too."""
    retention_bytes: int | None = None
    """The oldest segments are truncated as long as those that stay hold at least this much payload."""
    retention_cursors: bool = False
    """True: truncation stops at the lowest cursor, if the stream has one."""
    retention_consumed: bool = False
    """Records that every cursor has passed are truncated; nothing while there is no cursor."""
    offload_to: str = ""
    """Where sealed segments go as Parquet files, such as `s3://bucket/history` or `/mnt/history`; empty: nowhere."""
    offload_after_s: float | None = None
    """Segments whose last record is older than this (append time) are offloaded by the janitor."""
    offload_bytes: int | None = None
    """The oldest segments are offloaded as long as those that stay on bookies hold at least this much payload."""
    backup_every_s: float = 0.0
    """A backup of a database is made when the newest one is older; 0: none is made."""
    backup_to: str = ""
    """The place of these backups, by its name in the operator's list (`[janitor] backup_places`)."""
    backup_keep: int = 7
    """Number of backups that stay, the newest ones."""
    compression: str = "none"
    encryption: str = "optional"
    """Encryption of entries: "optional", if the writer has a key, or "required": nothing is written without one."""
    max_producers: int = 10_000
    producer_s: float = 7 * 86_400.0
    """Seconds without an append after which a producer is forgotten."""
    max_uploads: int = 10_000
    """Maximum uploads of objects in parts that are open in a namespace at the same time."""

    @property
    def quorum(self) -> Quorum:
        return Quorum.parse(self.ensemble)

    @property
    def segment_s(self) -> float:
        """Return the longest time that a segment is written, seconds: at most the retention, since retention frees
        whole segments.
        """
        return self.roll_s if self.retention_s is None else min(self.roll_s, max(self.retention_s, 1.0))

    @property
    def digest_type(self) -> DigestType:
        return _DIGESTS[self.digest]


DEFAULTS = Policy()
FIELDS = {field.name: field for field in dataclasses.fields(Policy)}


def merged(*overrides: Mapping[str, Any]) -> Policy:
    """Return the defaults with these over them, the last one uppermost. Raises InvalidArgument for invalid values,
    since anyone who may write a stream's metadata writes the overrides.
    """
    values: dict[str, Any] = {}
    for part in overrides:
        values.update(part)
    for name, value in values.items():
        if not _is_of_type(name, value):
            raise InvalidArgument(
                f"policy setting {name!r} = {value!r:.60} is none that this release knows: set it anew, or upgrade"
            )
    return Policy(**values)


def _is_of_type(name: str, value: Any) -> bool:
    if name not in FIELDS or value is None:
        return name in _NULLABLE
    default = getattr(DEFAULTS, name)
    if isinstance(default, str | bool):
        return type(value) is type(default) and (name not in _CHOICES or value in _CHOICES[name])
    return type(value) in (int, float) and abs(value) < 2**63  # which is false of nan, too


def check_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in their stored form. InvalidArgument names the setting, the value and what is accepted."""
    checked: dict[str, Any] = {}
    for name, value in overrides.items():
        if name not in FIELDS:
            raise InvalidArgument(f"policy setting {name!r} is unknown; known: {', '.join(FIELDS)}")
        checked[name] = _checked(name, value)
    return checked


def check_place_name(name: str) -> str:
    """Return the name of a place for backups. Raises InvalidArgument for a location, which only an operator may
    give.
    """
    if not isinstance(name, str) or _PLACE.fullmatch(name) is None:
        raise InvalidArgument(
            f"backup_to {name!r}: needs the name of a place that an operator has listed ([janitor] backup_places), of "
            "letters, digits, dots, dashes and underscores, 64 at most; only operators say where places are"
        )
    return name


def _checked(name: str, value: Any) -> Any:
    default = getattr(DEFAULTS, name)
    if value is None:
        if name in _NULLABLE:
            return None
        raise InvalidArgument(f"policy setting {name}: needs a value, such as {default!r}")
    if name == "ensemble":
        quorum = Quorum.parse(value)
        return f"{quorum.ensemble_size}/{quorum.write_quorum}/{quorum.ack_quorum}"
    if name == "placement":
        if not isinstance(value, str):
            raise InvalidArgument(f"policy setting placement = {value!r}: needs words such as 'rack:2'")
        return str(PlacementPolicy.parse(value)) if value else ""
    if name == "offload_to":
        return check_location(value) if value else ""
    if name == "backup_to":
        return check_place_name(value) if value else ""
    if name in _CHOICES:
        known = _CHOICES[name]
        if not isinstance(value, str) or value not in known:
            raise InvalidArgument(f"policy setting {name} = {value!r}: choose one of {', '.join(known)}")
        return value
    if name in ("retention_cursors", "retention_consumed"):
        if type(value) is not bool:
            raise InvalidArgument(f"policy setting {name} = {value!r}: needs True or False")
        return value
    least, most = _BOUNDS[name]
    whole = name in ("roll_bytes", "retention_bytes", "offload_bytes", "backup_keep", "max_producers", "max_uploads")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise InvalidArgument(f"policy setting {name} = {value!r}: needs {kind} from {least:g} to {most:g}")
    return value if whole else float(value)


_CHOICES: dict[str, Collection[str]] = {
    "digest": _DIGESTS,
    "compression": CODECS,
    "encryption": ("optional", "required"),
}
_BOUNDS: dict[str, tuple[float, float]] = {
    "roll_bytes": (4096, 2**40),
    "roll_s": (0.1, 366 * 86_400.0),
    "retention_s": (0, 1000 * 366 * 86_400.0),
    "retention_bytes": (0, 2**62),
    "offload_after_s": (0, 1000 * 366 * 86_400.0),
    "offload_bytes": (0, 2**62),
    "backup_every_s": (0, 1000 * 366 * 86_400.0),
    "backup_keep": (1, 1000),
    "max_producers": (1, 20_000),
    "producer_s": (1.0, 366 * 86_400.0),
    "max_uploads": (1, 1_000_000),
}
