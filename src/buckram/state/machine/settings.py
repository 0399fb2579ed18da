"""MachineSettings: when snapshots are taken and digests compared. They may differ between processes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from buckram.errors import InvalidArgument

_MIB = 1024 * 1024
_BOUNDS: dict[str, tuple[float, float]] = {
    "snapshot_commands": (1, 2**40),
    "snapshot_bytes": (4096, 2**50),
    "keep_snapshots": (2, 100),
    "digest_commands": (1, 2**40),
    "linger_ms": (0, 10_000),
    "max_pending": (1, 1024),
}


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """What the leader does beside executing. Raises InvalidArgument for a value outside its limits."""

    snapshot_commands: int = 100_000
    """A snapshot is taken after so many commands since the last one, ..."""
    snapshot_bytes: int = 64 * _MIB
    """... or after so many bytes of log, and as many as the last snapshot has."""
    keep_snapshots: int = 2
    """So many snapshots are kept, and the log from the oldest of them on. At least 2: the newest might be damaged."""
    digest_commands: int = 10_000
    """The digest of the state is compared after so many commands."""
    linger_ms: float = 50.0
    """For how long a command may wait while two entries are in flight, so that more of them share the next one."""
    max_pending: int = 1024
    """So many commands of this process may be unacknowledged; `execute` waits beyond that."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, (least, most) = getattr(self, field.name), _BOUNDS[field.name]
            whole = field.name != "linger_ms"
            good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not good or not least <= value <= most:
                kind = "a whole number" if whole else "a number"
                raise InvalidArgument(f"{field.name} = {value!r}: needs {kind} from {least:g} to {most:g}")
