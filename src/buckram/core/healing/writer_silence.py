"""Detection of open ledgers whose writer has gone: the end that their members report stands still for a grace period.

Pure. Not here: asking the members, and the lease of a stream, which has to be free as well
(`healing/repair/member_verdicts`).
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
    """Ends of open ledgers, as their members reported them. They are compared as bytes and never decoded."""

    def __init__(self) -> None:
        self._seen: dict[tuple[LedgerId, bytes], _Seen] = {}

    def look(self, ledger: LedgerId, birth: bytes, ends: Mapping[BookieId, bytes], now: float) -> float:
        """Return for how many seconds none of the answering members has reported another end; 0.0 at the first look.

        `birth`: that of the ledger. `ends`: by member that answered, its LAC and last entry as it reported them. The
        time begins anew if a member answers for the first time, since it may know more, or if no member answers.
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
        """Drop a ledger that is closed, deleted or whole."""
        for key in [key for key in self._seen if key[0] == ledger]:
            del self._seen[key]
