"""The table is sound, and no advice that removes data is given about what answers, or before a restore is accepted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.states_page import alert_of

from buckram.core.cluster.bookie_report import BookieReport, ExpiredToken
from buckram.core.healing.lost_bookies import HealingBrake
from buckram.core.health.facts import (
    BackupFacts,
    BookieFacts,
    CursorFacts,
    Facts,
    ForeignFacts,
    HealingFacts,
    LackingLedger,
    MirrorFacts,
    NamespaceFacts,
    Noted,
    QueryFacts,
    Suspect,
)
from buckram.core.health.findings import advice, finding_of, findings, healthy, summary, why_kept
from buckram.core.health.state_table import TABLE
from buckram.core.health.states import Severity, removes

ROOT = Path(__file__).parents[3]
HOUR, DAY = 3_600_000_000, 86_400_000_000
NOW = 400 * DAY
VALUES = dict.fromkeys(
    ("admission", "subject", "file", "level", "ledger", "namespace", "quota", "query", "stream", "cursor"), "x"
)
"""Every value that some cure needs."""


def one(facts: Facts, state: str) -> str:
    """Why something is in this state; AssertionError unless exactly one thing is."""
    (found,) = [finding for finding in findings(facts) if finding.state.name == state]
    return found.why


def names(facts: Facts) -> list[str]:
    return [finding.state.name for finding in findings(facts)]


def test_a_bookie_that_could_not_be_asked_is_not_said_to_be_silent() -> None:
    """The address of one whose id is a name goes with its registration."""
    asked = Facts(bookies=(BookieFacts("b1:3181", "down", address="b1:3181"),))
    assert "does not answer" in one(asked, "bookie-down")
    unknown = one(Facts(bookies=(BookieFacts("bookie-1", "down"),)), "bookie-down")
    assert "does not answer" not in unknown
    assert "it was not asked" in unknown


# -- the table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_a_state_has_one_name_a_cure_and_a_section_of_the_runbook(name: str) -> None:
    state = TABLE[name]
    assert state.name == name
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert state.title
    assert state.cure
    assert not removes(state.cure), "what removes data is the last resort"
    assert removes(state.last_resort) is bool(state.last_resort)
    assert state.fields <= VALUES.keys() | {"where", "uri", "bookie"}
    page, _, anchor = state.runbook.partition("#")
    assert anchor == name
    assert f"\n## {anchor}\n" in (ROOT / page).read_text(), "no such section"
    rules = (ROOT / "deploy" / "prometheus" / "health.yml").read_text()
    assert (f"- alert: {alert_of(state)}\n" in rules) is (state.severity is not Severity.INFO)
    assert (f"runbook: {state.runbook}\n" in rules) is (state.severity is not Severity.INFO)


# -- the rule of advice -----------------------------------------------------------------------------------


def rows_of_bookies() -> Iterator[BookieFacts]:
    """A bookie in every combination of what is said of it and what it says."""
    reports = (
        None,
        BookieReport("0.2", reserved_bytes=10, writable_again_bytes=20, readonly_why="short", wall_us=1),
        BookieReport(
            "0.1", open_files=9, most_files=9, connections=9, most_connections=9, witness_refusal="no",
            metadata_refusal="no", certificate="c.pem", certificate_ends_s=1, writable_again_bytes=10**13,
            expired_tokens=(ExpiredToken("alice", NOW // 1_000_000),),
        ),
    )  # fmt: skip
    for state, answers, asked, free, report, troubles in itertools.product(
        ("writable", "readonly", "down"), (False, True), ("", "drain"), (None, 5, 10**12), reports, (False, True)
    ):
        yield BookieFacts(
            "b1",
            state,
            answers,
            "" if answers else "refused",
            "b1:1",
            "i",
            asked,
            free,
            10**12,
            (("limbo", "x"), ("slow disk", "x"), ("bad records", "x"), ("other", "x")) if troubles else (),
            report,
            certain=None if report is None else False,
            clock_ahead_us=HOUR,
        )


def rows_of_facts() -> Iterator[Facts]:
    brake = HealingBrake(("b1", "b2"), "too many")
    queue = tuple(LackingLedger(n, state, "why", 9e9, n == 2) for n, state in enumerate(("queued", "lost", "waiting")))
    everything = tuple(Noted(name, "b1", "", VALUES, bookie) for name in TABLE for bookie in ("b1", ""))
    for bookie, accepted, doubted, ill in itertools.product(
        rows_of_bookies(), (True, False, None), (False, True), (False, True)
    ):
        yield Facts(
            now_us=NOW,
            uri="u",
            refusal="full" if ill else "",
            accepted=accepted,
            moved="moved" if ill and accepted is False else "",
            suspects=(Suspect("b1", "b1:1", "went back"),) if doubted else (),
            bookies=(bookie, BookieFacts("b2", "writable", True, address="b1:1", incarnation="i")),
            healing=HealingFacts(not ill, "", brake if ill else None, queue if ill else (), 7 if ill else 0),
            shortages=(("host", "few"),) if ill else (),
            clock_doubt="far" if ill else "",
            namespaces=(NamespaceFacts("n", (("ledgers", 2, 1),)),),
            cursors=(CursorFacts("n/s", "c", 0, 5),),
            queries=(QueryFacts("n/s", "a", "q", 1, NOW - 5 * HOUR, HOUR),),
            mirrors=(MirrorFacts("n/m", 5, 0), MirrorFacts("n/o", 5, NOW, "refused")),
            backups=(BackupFacts("n/d", "nightly", 3600.0, 0, 1, "away"),),
            noted=everything if ill else (),
            not_asked=(("x", "y"),),
        )


def test_nothing_that_removes_data_is_advised_about_what_answers_or_before_a_restore_is_accepted() -> None:
    seen = set[tuple[str, bool]]()
    for facts in rows_of_facts():
        safe = facts.accepted is True and not facts.suspects
        alive = {bookie.id for bookie in facts.bookies if bookie.answers} | {one.bookie for one in facts.suspects}
        for found in findings(facts):
            about = {found.where} & alive
            seen.add((found.state.name, removes(found.do)))
            if found.state.last_resort and found.state.name.startswith("bookie"):
                assert removes(found.do) <= (safe and not about), (found, facts)
            assert removes(found.do) <= safe, (found, facts)
            assert "{" not in found.do
        taking_out = advice(facts, Noted("bookie-down", "b1", "", bookie="b1"))
        why = why_kept(facts, "b1")
        assert removes(taking_out) is (why == ""), "the gate and the advice differ"
        assert not why or why.startswith("bookie b1 is kept: "), why
    assert {name for name, _ in seen} == set(TABLE), "some state is reached by no facts"
    assert ("bookie-down", True) in seen
    assert ("bookie-down", False) in seen
    assert {name for name, removing in seen if removing} == {name for name, one in TABLE.items() if one.last_resort}


@pytest.mark.parametrize("name", TABLE)
def test_what_is_noted_of_a_bookie_that_answers_is_never_cured_by_removing(name: str) -> None:
    noted = Noted(name, "b1", "", VALUES, "b1")
    for answers in (True, False):
        facts = Facts(bookies=(BookieFacts("b1", "writable", answers),))
        assert removes(finding_of(facts, noted).do) is (not answers and bool(TABLE[name].last_resort))
    assert not removes(finding_of(Facts(), noted).do), "nobody knows whether it answers"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (Facts(accepted=False, uri="u"), "the metadata at u were restored"),
        (Facts(accepted=False, moved="they were moved"), "they were moved"),
        (Facts(suspects=(Suspect("b2", "b2:1", "went back"),)), "is not believed by b2"),
        (Facts(bookies=(BookieFacts("b1", "down", True, address="b1:1"),)), "it answers at b1:1"),
        (Facts(bookies=(BookieFacts("b1", "down"),)), ""),
    ],
)
def test_a_bookie_is_kept_for_a_reason(facts: Facts, why: str) -> None:
    kept = why_kept(facts, "b1")
    assert why in kept
    assert bool(why) is bool(kept)


# -- single states ----------------------------------------------------------------------------------------


def test_a_cluster_that_is_well_has_no_finding() -> None:
    report = BookieReport("0.2", reserved_bytes=1, writable_again_bytes=2, wall_us=NOW)
    bookies = tuple(
        BookieFacts(f"b{n}", "writable", True, "", f"b{n}:1", str(n), "", 10**12, 10**12, (), report) for n in range(3)
    )
    facts = Facts(now_us=NOW, bookies=bookies, healing=HealingFacts(auditor="a"))
    assert findings(facts) == ()
    assert healthy(())
    assert summary(()) == ""


def test_errors_come_first_and_only_they_are_unhealthy() -> None:
    warned = Facts(not_asked=(("x", "y"),), bookies=(BookieFacts("b", "readonly", True, asked="drain"),))
    assert names(warned) == ["not-asked", "bookie-rests"]
    assert healthy(findings(warned))
    ill = Facts(not_asked=(("x", "y"),), refusal="full")
    assert names(ill) == ["metadata-read-only", "not-asked"]
    assert not healthy(findings(ill))
    assert summary(findings(ill)) == "1 error, 1 warning"


def test_a_store_that_cannot_be_asked_hides_nothing_else() -> None:
    facts = Facts(uri="u", unreachable="refused", accepted=None)
    assert names(facts) == ["metadata-unreachable"]


def test_a_bookie_that_doubts_the_store_is_not_called_down() -> None:
    facts = Facts(suspects=(Suspect("b", "b:1", "it went back"),), bookies=(BookieFacts("b", "down"),))
    assert names(facts) == ["metadata-went-back"]
    restored = Facts(accepted=False, suspects=facts.suspects, bookies=facts.bookies)
    assert names(restored) == ["restore-not-accepted"]


def test_one_address_and_one_directory_belong_to_one_bookie() -> None:
    twice = (BookieFacts("a", "writable", True, address="h:1", incarnation="i"),) * 1 + (
        BookieFacts("b", "readonly", True, asked="drain", address="h:1", incarnation="i"),
    )
    assert set(names(Facts(bookies=twice))) == {"address-used-twice", "directory-used-twice", "bookie-rests"}
    unknown = tuple(BookieFacts(name, "writable", True) for name in "ab")
    assert names(Facts(bookies=unknown)) == []


def test_a_clock_is_compared_with_the_median_of_all() -> None:
    def bookies(*ahead_us: int) -> tuple[BookieFacts, ...]:
        return tuple(BookieFacts(f"b{n}", "writable", True, clock_ahead_us=us) for n, us in enumerate(ahead_us))

    assert names(Facts(bookies=bookies(0, 30_000_000, -30_000_000))) == []
    far = findings(Facts(bookies=bookies(0, HOUR, 0)))
    assert [(one.state.name, one.where, one.why) for one in far] == [
        ("clock-off", "b1", "3600 s ahead the median of all clocks")
    ]


def test_a_doubt_is_told_of_one_bookie_or_of_the_cluster_and_no_cursor_is_old_meanwhile() -> None:
    cursor = (CursorFacts("n/s", "c", NOW - 40 * DAY, 5),)

    def of(*certain: bool | None, clock_doubt: str = "") -> list[str]:
        bookies = tuple(BookieFacts(f"b{n}", "writable", True, certain=one) for n, one in enumerate(certain))
        return names(Facts(now_us=NOW, bookies=bookies, cursors=cursor, clock_doubt=clock_doubt))

    assert of(None, None) == of(True, True, None) == ["cursor-holds-retention"]
    assert of(True, False, True) == ["clock-doubted", "cursor-holds-retention"]
    assert of(True, False) == of(False, False, True) == ["clock-jump"]
    assert of(True, True, clock_doubt="far") == ["clock-off"]


@pytest.mark.parametrize(
    ("free", "total", "asked", "state"),
    [
        (5, 100, "", "disk-full"),
        (5, 100, "drain", "disk-full"),
        (15, 19, "", "disk-never-writable"),
        (90, 100, "", "bookie-read-only"),
        (90, 100, "drain", "bookie-rests"),
    ],
)
def test_why_a_bookie_takes_no_new_entries(free: int, total: int, asked: str, state: str) -> None:
    report = BookieReport("0.2", reserved_bytes=10, writable_again_bytes=20)
    bookie = BookieFacts("b", "readonly", True, asked=asked, free_bytes=free, total_bytes=total, report=report)
    assert names(Facts(bookies=(bookie,))) == [state]


@pytest.mark.parametrize(
    ("left_s", "state"), [(20 * 86_400, ""), (7 * 86_400, "certificate-ends"), (-1, "certificate-ended")]
)
def test_a_certificate_is_told_before_it_ends(left_s: int, state: str) -> None:
    report = BookieReport("0.2", certificate="c.pem", certificate_ends_s=NOW // 1_000_000 + left_s)
    facts = Facts(now_us=NOW, bookies=(BookieFacts("b", "writable", True, report=report),))
    assert names(facts) == ([state] if state else [])
    assert all("c.pem" in found.do for found in findings(facts))


@pytest.mark.parametrize(
    ("age", "pause", "dead"),
    [
        (30 * HOUR // 60, HOUR // 60, False),
        (2 * HOUR, HOUR // 60, True),
        (2 * HOUR, HOUR, False),
        (4 * HOUR, HOUR, True),
        (2 * HOUR, 0, False),
        (8 * DAY, HOUR, False),
    ],
)
def test_a_query_is_dead_after_an_hour_and_three_of_its_pauses(age: int, pause: int, dead: bool) -> None:
    facts = Facts(now_us=NOW, queries=(QueryFacts("n/s", "a", "q", 3, NOW - age, pause),))
    assert names(facts) == (["query-dead"] if dead else [])


def test_a_mirror_is_behind_when_its_replication_is_silent_or_far() -> None:
    def of(*mirrors: MirrorFacts) -> list[str]:
        return names(Facts(now_us=NOW, mirrors=mirrors))

    assert of(MirrorFacts("n/m", 50_000, NOW)) == []
    assert of(MirrorFacts("n/m", 0, NOW - HOUR)) == ["mirror-behind"]
    assert of(MirrorFacts("n/m", 200_000, NOW)) == ["mirror-behind"]
    assert of(MirrorFacts("n/m", 0, NOW, "refused")) == ["mirror-stopped"]


@pytest.mark.parametrize(
    ("made", "since", "why"),
    [
        (NOW - 2 * HOUR, 1, ""),
        (NOW - 2 * HOUR - 1, 1, "its newest backup is of 2 h ago, and its policy wants one at nightly every 1 h"),
        (NOW + HOUR, 1, ""),
        (0, NOW - HOUR, ""),
        (0, NOW - HOUR - 1, "no backup of it was ever made, and its policy wants one at nightly every 1 h"),
    ],
)
def test_a_backup_is_late_after_two_intervals_and_the_first_one_after_one(made: int, since: int, why: str) -> None:
    facts = Facts(now_us=NOW, backups=(BackupFacts("n/d", "nightly", 3600.0, made, since),))
    assert [(found.state.name, found.why) for found in findings(facts)] == ([("backup-late", why)] if why else [])


def test_a_backup_that_failed_is_told_at_once() -> None:
    facts = Facts(now_us=NOW, backups=(BackupFacts("n/d", "nightly", 3600.0, NOW, 1, "the place is away"),))
    (found,) = findings(facts)
    assert (found.state.name, found.where, found.why) == ("backup-failed", "n/d", "the place is away")
    assert "`buckram db show n/d`" in found.do


@pytest.mark.parametrize("days", [0, 7, 8])
def test_what_is_not_a_streams_own_is_told_for_a_week(days: int) -> None:
    seen = NOW - days * 24 * HOUR
    facts = Facts(now_us=NOW, foreign=(ForeignFacts("n/s", 17, seen), ForeignFacts("n/t", 18, seen, "/files")))
    found = list(findings(facts))
    if days > 7:
        assert not found
        return
    assert [(one.state.name, one.where) for one in found] == [
        ("foreign-ledger", "n/s 17"),
        ("foreign-ledger", "n/t 18"),
    ]
    assert "its metadata name ledger 17, made for another stream" in found[0].why
    assert "files of history at /files" in found[1].why
    assert "`buckram stream check n/s`" in found[0].do


def test_ledgers_without_copies_are_one_finding_with_the_oldest() -> None:
    queue = (LackingLedger(1, "queued", age_s=10.0), LackingLedger(2, "waiting", "no room", 7_200.0))
    facts = Facts(healing=HealingFacts(auditor="a", queue=queue))
    assert one(facts, "under-replicated") == "2 ledgers lack copies, for 2 h at most; ledger 2 waiting: no room"
    many = tuple(LackingLedger(n, "queued") for n in range(9))
    (found,) = findings(Facts(healing=HealingFacts(auditor="a", queue=many)))
    assert found.where == "ledgers 0, 1, 2, 3, 4 and 4 more"
