"""Histories: what actors saw, as lines of JSON in a file for each process. They are written at once and read by the
verdict.

A line that a kill cut off is skipped. Times are the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
"""One event: `event` is its kind, `at` its time in seconds, `actor` the name of the actor; other keys depend on the
kind."""


class Recorder:
    """Appends events to a file. Each is one write, which a kill of this process cannot take back."""

    def __init__(self, path: Path, actor: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._actor = actor

    def record(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), "actor": self._actor, **facts})
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read_history(folder: Path) -> list[Event]:
    """Return all events of all actors, in the order in which they happened."""
    return sorted((event for path in sorted(folder.glob("*.jsonl")) for event in _events(path)), key=lambda e: e["at"])


def read_own(path: Path) -> list[Event]:
    """Return the events of one actor, in its order; none if it never ran."""
    return list(_events(path)) if path.exists() else []


def _events(path: Path) -> Iterator[Event]:
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)
