"""What a bookie has noted and nobody has written yet: deeds and refusals each have their room, and all are counted."""

from __future__ import annotations

from collections import Counter

from tests.support.clock import SECOND, SettableClock

from buckram.bookie.accounting.audit_queue import MOST_EVENTS, MOST_REFUSALS, AuditLog
from buckram.core.tenants.audit_trail import FIRST, MOST_PRINCIPALS, REFUSALS, REFUSED, AuditEvent, ChainCheck
from buckram.runtime.process.stats import MemoryStats

LOST = "buckram_bookie_lost_audit_events_total"


class Case:
    def __init__(self, most: int = MOST_EVENTS, most_refusals: int = MOST_REFUSALS) -> None:
        self.clock, self.stats = SettableClock(), MemoryStats()
        self.log = AuditLog(self.clock, self.stats, most, most_refusals)
        self.trail: list[AuditEvent] = []

    def do(self, what: str) -> None:
        self.log.add(self.log.event("token:alice", "delete", what))

    def refuse(self, principal: str, action: str = "read", what: str = "key /x") -> None:
        self.log.refuse(self.log.event(principal, action, what, "", REFUSED))

    def write(self) -> None:
        while events := self.log.batch(1000):
            self.trail += events
            self.log.written(events)

    def refused(self) -> Counter[str]:
        """How often each principal was refused, by the trail."""
        found = Counter[str]()
        for event in self.trail:
            if event.result == REFUSED:
                more = int(event.what.split()[0]) if event.action == REFUSALS else 1
                found[event.principal] += more
        return found


def test_sixty_thousand_refusals_displace_no_deed_and_are_all_counted() -> None:
    case = Case()
    for number in range(500):
        case.do(f"ledger {number}")
        for _ in range(120):
            case.refuse("token:mallory", "create" if number % 2 else "policy")
    case.log.close()
    assert len(case.log) < 600
    case.write()
    assert [one.what for one in case.trail if one.result == "done"] == [f"ledger {n}" for n in range(500)]
    assert case.refused() == {"token:mallory": 60_000}
    more = [one for one in case.trail if one.action == REFUSALS]
    assert sum(one.result == REFUSED for one in case.trail) == FIRST + len(more)
    assert "policy 29995" in more[0].detail
    assert "create 30000" in more[0].detail
    assert case.stats.values()["buckram_bookie_audit_refusals_total"] == 60_000


def test_an_interval_ends_and_then_the_first_few_are_events_again() -> None:
    case = Case()
    for _ in range(3):
        for _ in range(20):
            case.refuse("token:mallory")
        case.clock.passed += 61 * SECOND
        case.log.settle()
    case.write()
    assert [one.what for one in case.trail] == [*["key /x"] * 5, "15 more refusals"] * 3
    assert case.refused() == {"token:mallory": 60}


def test_refusals_of_many_principals_fill_their_own_room_only_and_are_all_counted() -> None:
    case = Case(most=50)
    for step in range(40):
        for number in range(700):
            case.refuse(f"token:m{number}")
        if step % 4 == 3:
            case.clock.passed += 61 * SECOND
    for number in range(50):
        case.do(f"ledger {number}")
    assert len(case.log) <= 50 + MOST_REFUSALS + MOST_PRINCIPALS + 1
    assert case.stats.values()[LOST] == 0
    case.write()
    case.log.close()
    case.write()
    assert sum(case.refused().values()) == 28_000
    assert sum(one.result == "done" for one in case.trail) == 50


def test_deeds_beyond_their_room_are_counted_and_the_number_is_an_event() -> None:
    case = Case(most=3)
    for number in range(5):
        case.do(f"ledger {number}")
    assert [one.what for one in case.log.batch(10)] == ["ledger 0", "ledger 1", "ledger 2"]
    assert case.stats.values()[LOST] == 2
    case.write()
    case.do("ledger 5")
    case.write()
    assert [(one.action, one.what) for one in case.trail[3:]] == [("lost", "2 events"), ("delete", "ledger 5")]
    check = ChainCheck(from_start=True)
    for offset, event in enumerate(case.trail):
        check.see(offset, event.encode())
    assert check.whole


def test_events_have_one_chain_in_the_order_in_which_they_were_noted() -> None:
    case = Case()
    case.do("ledger 1")
    case.refuse("token:mallory")
    case.log.take({"note": AuditEvent(1, "unix:root", "grant", "token:alice", chain="x", number=9, before="y")})
    case.do("ledger 2")
    case.write()
    assert [(one.chain, one.number) for one in case.trail] == [(case.log.chain, number) for number in range(1, 5)]
    assert case.log.chain != Case().log.chain
    check = ChainCheck(from_start=True)
    for offset, event in enumerate(case.trail):
        check.see(offset, event.encode())
    assert check.whole


def test_a_note_has_one_place_however_often_it_is_read() -> None:
    case = Case()
    note = AuditEvent(1, "unix:root", "grant", "token:alice")
    for _ in range(3):
        case.log.take({"a": note, "b": None})
    assert [(one.action, one.what) for one in case.log.batch(9)] == [
        ("grant", "token:alice"),
        ("lost", "1 note of another process that cannot be parsed"),
    ]
    assert list(case.log.written_notes) == []
    case.write()
    assert sorted(case.log.written_notes) == ["a", "b"]
    case.log.take({"a": note})
    assert len(case.log) == 0
    case.log.dropped_note("a")
    assert list(case.log.written_notes) == ["b"]


def test_what_a_key_is_called_does_not_decide_how_much_memory_it_takes() -> None:
    case = Case()
    for _ in range(10):
        case.refuse("token:" + "m" * 1_000_000, "read", "key /" + "\U0001f600" * 1_000_000)
        case.do("stream " + "\x1b" * 1_000_000)
    assert sum(len(one.what) + len(one.principal) for one in case.log.batch(100)) < 20_000


def test_copies_get_everything_also_what_the_trail_has_no_room_for() -> None:
    case = Case(most=3)
    case.do("ledger 0")
    copies: list[AuditEvent] = []
    case.log.copy_to(copies.append)
    for number in range(1, 6):
        case.do(f"ledger {number}")
    case.refuse("token:mallory")
    assert [one.what for one in copies] == [*(f"ledger {n}" for n in range(6)), "key /x"]
    assert [one.number for one in copies] == [1, 2, 3, 0, 0, 0, 4]
