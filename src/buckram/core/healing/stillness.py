"""Whether an open ledger's writer is at work: what its members say of its end has stood still for a grace period.

Pure. Not here: asking the members, and the lease of a stream, which has to be free as well (`healing/open_ledger`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buckram.types import BookieId, LedgerId


@dataclass(frozen=True, slots=True)
class _Seen:
    ends: dict[BookieId, bytes]
    since: float


class Stillness:
    """What was seen of the ends of open ledgers. Bytes of an end are compared, never understood."""

    def __init__(self) -> None:
        self._seen: dict[tuple[LedgerId, bytes], _Seen] = {}

    def look(self, ledger: LedgerId, birth: bytes, ends: Mapping[BookieId, bytes], now: float) -> float:
        """Seconds for which none of the members that answer has said anything new; 0.0 at the first look.

        `ends`: by member that answered, its LAC and last entry as it gave them. A member that is heard for the first
        time, or nobody at all, begins the time anew: it may know more than the others.
        """
        key = ledger, birth
        seen = self._seen.get(key)
        if not ends:
            self._seen.pop(key, None)
            return 0.0
        if seen is None or any(seen.ends.get(bookie) != end for bookie, end in ends.items()):
            self._seen[key] = _Seen({**(seen.ends if seen else {}), **ends}, now)
            return 0.0
        return now - seen.since

    def forget(self, ledger: LedgerId) -> None:
        """It is closed, deleted or whole."""
        for key in [key for key in self._seen if key[0] == ledger]:
            del self._seen[key]
