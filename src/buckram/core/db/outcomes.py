"""What became of transactions: which groups were committed, and which tokens of callers were used.

Both follow from the log alone and are part of every replica's state. Groups are kept as runs of one leadership, so that
they cost nothing; of the callers' tokens the newest are kept, as many as a limit of their number and bytes allows.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, NamedTuple

from buckram.core.db.group import Group, Receipt
from buckram.errors import InvalidArgument

MAX_TOKENS = 100_000
MAX_BYTES = 64 * 1024 * 1024
"""Of tokens and their counts."""
MAX_TOKEN_BYTES = 200
_MAX_RUNS = 10_000
_OWN = re.compile(r"([0-9a-f]{16}):([0-9]{1,19}):([0-9]{1,19})", re.ASCII)


class OwnToken(NamedTuple):
    """The token of a group, which the database gives itself: the log's uid, the leadership, the sequence."""

    log: str
    leadership: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.log}:{self.leadership}:{self.sequence}"


def parse_own(token: str) -> OwnToken | None:
    """None for the token of a caller."""
    found = _OWN.fullmatch(token)
    return None if found is None else OwnToken(found[1], int(found[2]), int(found[3]))


def check_token(token: str) -> str:
    """Raises InvalidArgument for what cannot be the token of a caller."""
    good = isinstance(token, str) and token.isprintable() and 0 < len(token) <= MAX_TOKEN_BYTES
    if not good or len(token.encode(errors="replace")) > MAX_TOKEN_BYTES or parse_own(token) is not None:
        raise InvalidArgument(
            f"token {token!r}: needs 1 to {MAX_TOKEN_BYTES} printable bytes, and not the form that CommitUnknown has"
        )
    return token


class Outcomes:
    """Runs of groups by leadership, and receipts by token. Other threads may ask at any time."""

    def __init__(self) -> None:
        self._runs: list[list[int]] = []
        """Leadership, first sequence, last sequence; ascending."""
        self._receipts: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0

    def committed(self, group: Group) -> None:
        """A group was committed."""
        if self._runs and self._runs[-1][0] == group.leadership:
            self._runs[-1][2] = group.sequence
        else:
            self._runs.append([group.leadership, group.sequence, group.sequence])
            del self._runs[:-_MAX_RUNS]
        for token, counts in group.receipts:
            self._bytes += len(token) + len(counts) - _size(token, self._receipts.get(token))
            self._receipts[token] = counts
            while len(self._receipts) > MAX_TOKENS or self._bytes > MAX_BYTES:
                self._bytes -= _size(*self._receipts.popitem(last=False))

    def counts(self, token: str) -> str | None:
        """The counts of what was committed under the token of a caller."""
        return self._receipts.get(token)

    def has(self, leadership: int, sequence: int) -> bool:
        """Whether this group was committed."""
        return any(run[0] == leadership and run[1] <= sequence <= run[2] for run in reversed(self._runs))

    def state(self) -> dict[str, Any]:
        """All of it, for a snapshot."""
        return {"runs": self._runs, "receipts": list(self._receipts.items())}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Outcomes:
        """What `state` gave."""
        found = cls()
        found._runs = [list(map(int, run)) for run in state["runs"]]
        found._receipts = OrderedDict((str(token), str(counts)) for token, counts in state["receipts"])
        found._bytes = sum(_size(*item) for item in found._receipts.items())
        return found


def _size(token: str, counts: str | None) -> int:
    return 0 if counts is None else len(token) + len(counts)


__all__ = ["Outcomes", "OwnToken", "Receipt", "check_token", "parse_own"]
