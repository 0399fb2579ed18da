"""Outcomes of transactions: which groups were committed, and which tokens of callers were used.

Both follow from the log alone and are part of every replica's state. Groups are kept as runs of one leadership, which
take little memory. The tokens of callers are kept for a day by the time of the log; nothing else drops them, so a
leader that has no room for more takes no new ones (`full`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from buckram.core.db.group import Group, Receipt
from buckram.errors import InvalidArgument

KEPT_US = 24 * 3600 * 1_000_000
"""Time for which a token is known after its commit, microseconds of the log's time."""
KEPT_ANYWAY = 10_000
"""Number of newest tokens that stay whatever their age: a leader whose clock is days ahead removes none of them."""
SPAN_US = KEPT_US // 24
SPAN_TOKENS, SPAN_BYTES = 10_000, 4 * 1024 * 1024
"""Maximum tokens and bytes of a span. Tokens are dropped a span at a time, so they are known for an hour longer at
most.
"""
# These four are part of the format: replicas that differ in them would differ in their state.
TOKEN_OVERHEAD = 150
"""Approximate bytes of a token besides its text and its counts."""
MAX_TOKEN_BYTES = 200
_MAX_RUNS = 100_000
"""Maximum number of runs, more than a day has: leaderships of less than a second each do not follow one another all
day.
"""
_OWN = re.compile(r"([0-9a-f]{16}):([0-9]{1,19}):([0-9]{1,19})", re.ASCII)


class OwnToken(NamedTuple):
    """The token of a group, which the database gives itself: the log's uid, the leadership, the sequence."""

    log: str
    leadership: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.log}:{self.leadership}:{self.sequence}"


def parse_own(token: str) -> OwnToken | None:
    """Parse the token of a group; None for the token of a caller."""
    found = _OWN.fullmatch(token)
    return None if found is None else OwnToken(found[1], int(found[2]), int(found[3]))


def check_token(token: str) -> str:
    """Return the token of a caller. Raises InvalidArgument for what cannot be one."""
    good = isinstance(token, str) and token.isprintable() and 0 < len(token) <= MAX_TOKEN_BYTES
    if not good or len(token.encode(errors="replace")) > MAX_TOKEN_BYTES or parse_own(token) is not None:
        raise InvalidArgument(
            f"token {token!r}: needs 1 to {MAX_TOKEN_BYTES} printable bytes, and not the form that CommitUnknown has"
        )
    return token


class _Span:
    """Receipts that came one after the other. Only the newest span changes."""

    __slots__ = ("began_us", "bytes", "ended_us", "receipts")

    def __init__(self, began_us: int) -> None:
        self.began_us = self.ended_us = began_us
        self.receipts: dict[str, str] = {}
        self.bytes = 0

    def takes(self, time_us: int) -> bool:
        """Return whether a commit at this time still belongs to the span."""
        return time_us - self.began_us < SPAN_US and len(self.receipts) < SPAN_TOKENS and self.bytes < SPAN_BYTES

    def add(self, token: str, counts: str, time_us: int) -> int:
        """Add a receipt, and return by how many bytes the span has grown."""
        grown = _size(token, counts) - _size(token, self.receipts.get(token))
        self.receipts[token], self.ended_us = counts, time_us
        self.bytes += grown
        return grown


class Outcomes:
    """Runs of groups by leadership, and receipts by token. Other threads may read at any time."""

    def __init__(self) -> None:
        self._runs: list[list[int]] = []
        """Leadership, first sequence, last sequence; ascending."""
        self._spans: tuple[_Span, ...] = ()
        """Spans, the oldest first. The tuple is replaced and never changed, because other threads may be reading it."""
        self._bytes = self._tokens = 0

    def committed(self, group: Group, time_us: int) -> None:
        """Record that a group was committed at this time of the log, microseconds UTC."""
        if self._runs and self._runs[-1][0] == group.leadership:
            self._runs[-1][2] = group.sequence
        else:
            self._runs.append([group.leadership, group.sequence, group.sequence])
            del self._runs[:-_MAX_RUNS]
        for token, counts in group.receipts:
            if not self._spans or not self._spans[-1].takes(time_us):
                self._spans = (*self._spans, _Span(time_us))
            span = self._spans[-1]
            self._tokens -= len(span.receipts)
            self._bytes += span.add(token, counts, time_us)
            self._tokens += len(span.receipts)
        for span in self._expired(time_us):
            self._spans = self._spans[1:]
            self._bytes -= span.bytes
            self._tokens -= len(span.receipts)

    def set_back(self, time_us: int) -> None:
        """Move times after this one back to it: the time of the log was ahead."""
        for span in self._spans:
            span.began_us, span.ended_us = min(span.began_us, time_us), min(span.ended_us, time_us)

    def _expired(self, time_us: int) -> list[_Span]:
        """Return the spans, from the oldest on, that may be dropped at this time."""
        expired: list[_Span] = []
        left = self._tokens
        for span in self._spans:
            left -= len(span.receipts)
            if time_us - span.ended_us <= KEPT_US or left < KEPT_ANYWAY:
                break
            expired.append(span)
        return expired

    def full(self, time_us: int, limit: int) -> int:
        """Return 0 if another token may be used at this time; else the number of tokens that take `limit` bytes or
        more.
        """
        if self._bytes < limit:
            return 0
        expired = self._expired(time_us)
        if self._bytes - sum(span.bytes for span in expired) < limit:
            return 0
        return self._tokens - sum(len(span.receipts) for span in expired)

    def counts(self, token: str) -> str | None:
        """Return the counts of what was committed under the token of a caller; None if it is not known."""
        for span in reversed(self._spans):
            if (found := span.receipts.get(token)) is not None:
                return found
        return None

    def has(self, leadership: int, sequence: int) -> bool:
        """Return whether this group was committed."""
        at = bisect_right(self._runs, sequence, key=lambda run: run[1]) - 1
        return at >= 0 and self._runs[at][0] == leadership and sequence <= self._runs[at][2]

    # -- snapshots ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all but the receipts, for a snapshot."""
        spans = [[span.began_us, span.ended_us, len(span.receipts)] for span in self._spans]
        return {"runs": [list(run) for run in self._runs], "spans": spans}

    def receipts(self) -> list[dict[str, str]]:
        """Return the receipts of each span that `state` names. Later commits do not change them."""
        return [*(span.receipts for span in self._spans[:-1]), *(dict(span.receipts) for span in self._spans[-1:])]

    @classmethod
    def of(cls, state: dict[str, Any], receipts: Iterable[dict[str, str]]) -> Outcomes:
        """Restore outcomes from `state` and `receipts`. Raises ValueError if they do not belong together."""
        found, spans = cls(), list[_Span]()
        found._runs = [list(map(int, run)) for run in state["runs"]]
        for (began_us, ended_us, count), some in zip(state["spans"], receipts, strict=True):
            if len(some) != count:
                raise ValueError(f"{len(some)} tokens where {count} were named")
            span = _Span(int(began_us))
            span.ended_us, span.receipts = int(ended_us), {str(token): str(counts) for token, counts in some.items()}
            span.bytes = sum(_size(*item) for item in span.receipts.items())
            found._bytes += span.bytes
            found._tokens += count
            spans.append(span)
        found._spans = tuple(spans)
        return found


def _size(token: str, counts: str | None) -> int:
    return 0 if counts is None else len(token) + len(counts) + TOKEN_OVERHEAD


__all__ = ["Outcomes", "OwnToken", "Receipt", "check_token", "parse_own"]
