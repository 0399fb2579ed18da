"""Results of a store's reads, and the callbacks that receive them.

Callbacks run on the loop's thread, once each, sometimes before the call that they were passed to returns.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from buckram.bookie.storage.errors import StoreError
from buckram.core.entries.packed import FrameParts

Outcome: TypeAlias = bytes | StoreError | None
"""Result for one entry: the entry, why it cannot be read, or None where it is certainly absent."""


class OutcomesCallback(Protocol):
    """Receives one outcome for each entry that was asked for, in that order."""

    def __call__(self, outcomes: list[Outcome], /) -> None: ...


class RangeCallback(Protocol):
    """Receives consecutive entries, [] where the first is certainly absent, or why the first cannot be read."""

    def __call__(self, entries: list[bytes] | StoreError, /) -> None: ...


class FramesCallback(Protocol):
    """Receives consecutive entries as frames of the log, or None where they are unavailable in this form."""

    def __call__(self, frames: FrameParts | None, /) -> None: ...


class FetchCallback(Protocol):
    """Called when everything that was to be fetched is in its place."""

    def __call__(self) -> None: ...
