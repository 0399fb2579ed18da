"""StoreError: the store can neither return an entry nor say that it is absent."""

from __future__ import annotations

from buckram.disk.trouble import harmless
from buckram.errors import BuckramError


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
    """For who could not read an index. Returns for damage, which is repaired or counted as a loss. A shortage says
    nothing of the data: StoreError of kind "io", and nothing else happens."""
    if harmless(error):
        raise StoreError("io", f"{what} cannot be read now: {error}") from error
