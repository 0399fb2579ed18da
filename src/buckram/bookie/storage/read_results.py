"""Results of a store's reads, and the callbacks that receive them.

Callbacks run on the loop's thread, once each, sometimes before the call that they were passed to returns. A read that
ends with StoreError says that the store can neither return an entry nor say that it is absent.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from buckram.core.entries.packed import FrameParts
from buckram.errors import BuckramError
from buckram.runtime.disk.io_errors import harmless


class StoreError(BuckramError):
    """`kind`: "limbo" (may have been lost here), "corrupt" (bytes fail their checks), "io" (the device or the log
    failed), "busy" (too much waits for the disk), "full" (no room). None of them is evidence of absence."""

    retryable = True

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def limbo(self) -> bool:
        return self.kind == "limbo"


def unless_harmless(error: Exception, what: str) -> None:
    """Handle a failed read of an index. Returns if the index is damaged: it is repaired or counted as a loss.

    Raises StoreError of kind "io" if the error says nothing about the data (see `harmless`); nothing else happens then.
    """
    if harmless(error):
        raise StoreError("io", f"{what} cannot be read now: {error}") from error


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
