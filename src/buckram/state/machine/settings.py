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
    """Settings of a leader's snapshots, digests and queues. Raises InvalidArgument for a value outside its limits."""

    snapshot_commands: int = 100_000
    """Number of commands since the last snapshot after which one is taken, ..."""
    snapshot_bytes: int = 64 * _MIB
    """... or bytes of log after which one is taken, but at least as many as the last snapshot has."""
    keep_snapshots: int = 2
    """Number of snapshots kept, with the log from the oldest of them on. At least 2: the newest might be damaged."""
    digest_commands: int = 10_000
    """Number of commands between two comparisons of the state's digest."""
    linger_ms: float = 50.0
    """Maximum time that a command waits while two entries are in flight, so that more commands share the next entry."""
    max_pending: int = 1024
    """Maximum number of unacknowledged commands of this process; `execute` waits beyond that."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, (least, most) = getattr(self, field.name), _BOUNDS[field.name]
            whole = field.name != "linger_ms"
            good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not good or not least <= value <= most:
                kind = "a whole number" if whole else "a number"
                raise InvalidArgument(f"{field.name} = {value!r}: needs {kind} from {least:g} to {most:g}")
