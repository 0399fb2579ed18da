"""StoreError: the store can neither return an entry nor say that it is absent."""

from __future__ import annotations

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
