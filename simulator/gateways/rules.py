"""Rules: appends, pages and tails as clients saw them are compared with the whole stream, which is read in the end.

Not here: files and objects (`file_model.py`), the end (`ending.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from buckram.types import Offset
from simulator.engine.world import World
from simulator.gateways.histories import Histories

ACKED, REFUSED, UNKNOWN = "acknowledged", "refused", "unknown"
_SHOWN = 4


@dataclass(slots=True)
class Sent:
    """One append of a client, in however many requests it was sent."""

    client: str
    stream: str
    kind: str
    values: list[bytes]
    expected: Offset | None = None
    """The offset that its condition names."""
    atomic: bool = False
    outcome: str = UNKNOWN
    first: Offset | None = None
    last: Offset | None = None
    """The offsets that the answer told; None if it told none, as all records were stored before."""

    def __str__(self) -> str:
        told = "" if self.first is None else f" at {self.first} to {self.last}"
        return f"{self.client}'s {self.kind} append of {self.values[0]!r} and {len(self.values) - 1} more{told}"


@dataclass(slots=True)
class Seen:
    """Records that a client was shown: offsets with values, from `start` on, and where it was told to go on."""

    client: str
    start: Offset
    rows: list[tuple[Offset, bytes]]
    following: Offset


@dataclass(slots=True)
class Tail:
    """All events of one tail."""

    client: str
    rows: list[tuple[Offset, bytes]] = field(default_factory=list)

    @property
    def position(self) -> Offset:
        """The offset of the next event."""
        return self.rows[-1][0] + 1 if self.rows else 0


class Rules:
    """The checks of one life."""

    def __init__(self, world: World) -> None:
        self.world, self.report = world, world.report
        self.histories = Histories(world)
        self.sent: list[Sent] = []
        self.pages: dict[str, list[Seen]] = defaultdict(list)
        self.tails: dict[str, list[Tail]] = defaultdict(list)

    @property
    def acked(self) -> int:
        return sum(one.outcome == ACKED for one in self.sent)

    # -- while it happens -----------------------------------------------------------------------------------

    def followed(self, tail: Tail, offset: Offset, value: bytes) -> None:
        """Check an event of a tail: it is the next one."""
        self.report.check(
            "tail", offset == tail.position, "{} gets event {} where {} is next", tail.client, offset, tail.position
        )
        tail.rows.append((offset, value))

    # -- in the end -----------------------------------------------------------------------------------------

    def judge(self, stream: str, final: list[bytes]) -> None:
        """Compare all that clients saw of a stream with its records."""
        count = Counter(final)
        for one in self.sent:
            if one.stream == stream:
                self._judge_sent(one, final, count)
        known = {value for one in self.sent if one.stream == stream for value in one.values}
        strange = [value for value in final if value not in known]
        self.report.check("once", not strange, "stream {} has {}, which nobody sent", stream, strange[:_SHOWN])
        for page in self.pages[stream]:
            self._judge_page(page, final)
        for tail in self.tails[stream]:
            wrong = [row for row in tail.rows if row[0] >= len(final) or final[row[0]] != row[1]]
            self.report.check("tail", not wrong, "{} got {}, which is not there", tail.client, wrong[:_SHOWN])

    def _judge_sent(self, one: Sent, final: list[bytes], count: Counter[bytes]) -> None:
        check, counts = self.report.check, [count[value] for value in one.values]
        if one.outcome == REFUSED:
            check("refused", not any(counts), "{} was refused, and is there {} times", one, counts)
            return
        check("once", max(counts) <= 1, "{} is there {} times", one, counts)
        if one.atomic and one.outcome == UNKNOWN:
            check("once", len(set(counts)) == 1, "{} is atomic, and is there {} times", one, counts)
        if one.outcome != ACKED:
            return
        check("once", min(counts) == 1, "{} was acknowledged, and is there {} times", one, counts)
        if one.first is not None and one.last is not None:
            told = one.last - one.first + 1
            there = final[one.first : one.last + 1]
            check("told", there == one.values[-told:], "{}: there is {}", one, there[:_SHOWN])
            fits = one.expected in (None, one.first)
            check("told", fits, "{} was to be at {}", one, one.expected)

    def _judge_page(self, page: Seen, final: list[bytes]) -> None:
        end = page.start + len(page.rows)
        right = page.rows == list(enumerate(final[page.start : end], page.start)) and page.following == end
        self.report.check(
            "page",
            right,
            "{} got a page from {} with {} and next {}, and there is {}",
            *(page.client, page.start, page.rows[:_SHOWN], page.following, final[page.start : end][:_SHOWN]),
        )


__all__ = ["ACKED", "REFUSED", "UNKNOWN", "Rules", "Seen", "Sent", "Tail"]
