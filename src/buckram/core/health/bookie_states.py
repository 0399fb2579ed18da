"""States of bookies: whether they answer and take entries, and the troubles that they report of themselves. Pure.

One of the troubles are bytes that a bookie could free and keeps for now, by the reason.

Not here: the account that a bookie makes of its collection (`bookie/garbage/collection_account.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from buckram.core.cluster.bookie_report import BookieReport, Collected, Keeps
from buckram.core.cluster.wall_time import APART_US, between
from buckram.core.health.cluster_states import lasting, named
from buckram.core.health.facts import BookieFacts, Facts, Noted
from buckram.types import BookieId

NEARLY_ALL = 0.9

NEARLY_FULL_BYTES = 2_000_000_000

CERTIFICATE_S = 14 * 86_400
"""Seconds before the end of a certificate from which a finding asks to renew it; one week would be short notice."""

TOKEN_S = 3_600
"""Seconds after its last use for which an expired token is reported."""

TROUBLES = {"slow disk": "slow-disk", "bad records": "bad-records", "limbo": "limbo"}
"""State of the table by the name that a bookie gives to its trouble; any other trouble is a "bookie-trouble"."""


def of_bookies(facts: Facts) -> Iterator[Noted]:
    suspects = {one.bookie for one in facts.suspects}
    for one in facts.bookies:
        if one.id not in suspects:
            yield from _serving(one)
        yield from _space(one)
        for trouble, why in one.troubles:
            yield trouble_of(one.id, trouble, why)
        if one.report is not None:
            yield from _limits(one.id, one.report)
            yield from _security(facts, one.id, one.report)
    yield from _releases(facts)
    yield from _used_twice(facts)
    yield from _clocks(facts)


def trouble_of(bookie: BookieId, trouble: str, why: str) -> Noted:
    """Return the state of a trouble that a bookie reports of itself."""
    known = trouble in TROUBLES
    return Noted(
        TROUBLES[trouble] if known else "bookie-trouble", bookie, why if known else f"{trouble}: {why}", bookie=bookie
    )


def _serving(one: BookieFacts) -> Iterator[Noted]:
    if one.state == "down" and one.answers:
        yield Noted("bookie-unregistered", one.id, f"it answers at {one.address} and is not registered", bookie=one.id)
    elif one.state == "down":
        why = "it is down: it has a cookie, is not registered and does not answer"
        if not one.address:  # its id is a name, and its address went with its registration
            why = "it is down: it has a cookie and is not registered; no address of it is known, so it was not asked"
        yield Noted("bookie-down", one.id, why, bookie=one.id)
    elif not one.answers:
        why = f"it is registered and does not answer: {one.trouble}"
        yield Noted("bookie-silent", one.id, why, bookie=one.id)
    elif one.trouble:
        yield Noted("bookie-trouble", one.id, one.trouble, bookie=one.id)


def _space(one: BookieFacts) -> Iterator[Noted]:
    said = one.report
    if one.state == "readonly":
        free, total = one.free_bytes, one.total_bytes
        again = max(said.writable_again_bytes, said.reserved_bytes) if said is not None else 0
        if total is not None and again > total:
            why = f"its device has {total} bytes, and it takes entries again when {again} are free"
            yield Noted("disk-never-writable", one.id, why, bookie=one.id)
        elif free is not None and free < again:
            why = f"{free} bytes are free, and it takes entries again when {again} are"
            yield Noted("disk-full", one.id, why, bookie=one.id)
        elif one.asked:
            yield Noted("bookie-rests", one.id, f"an operator asked for it: {one.asked}", bookie=one.id)
        elif one.answers:
            why = said.readonly_why if said is not None else ""
            yield Noted("bookie-read-only", one.id, why or "it reports no reason", bookie=one.id)
    elif one.free_bytes is not None and one.free_bytes < NEARLY_FULL_BYTES:
        yield Noted("disk-nearly-full", one.id, f"{one.free_bytes} bytes are free", bookie=one.id)


def _limits(bookie: str, said: BookieReport) -> Iterator[Noted]:
    if said.most_files and said.open_files >= NEARLY_ALL * said.most_files:
        why = f"{said.open_files} of {said.most_files} files that it may open are open"
        yield Noted("descriptors-short", bookie, why, bookie=bookie)
    if said.most_connections and said.connections >= NEARLY_ALL * said.most_connections:
        why = f"{said.connections} of {said.most_connections} connections are in use"
        yield Noted("connections-short", bookie, why, bookie=bookie)


def _security(facts: Facts, bookie: str, said: BookieReport) -> Iterator[Noted]:
    if said.witness_refusal:
        yield Noted("witness-refused", bookie, said.witness_refusal, bookie=bookie)
    if said.certificate_ends_s:
        left = said.certificate_ends_s - facts.now_us / 1e6
        if left <= CERTIFICATE_S:
            state = "certificate-ends" if left > 0 else "certificate-ended"
            why = f"it ends in {lasting(left)}" if left > 0 else f"it ended {lasting(-left)} ago"
            yield Noted(state, bookie, why, {"file": said.certificate}, bookie)
    for token in said.expired_tokens:
        seen = max(0.0, facts.now_us / 1e6 - token.seen_s)
        if seen <= TOKEN_S:
            why = f"a token of {token.subject} that has expired was shown {lasting(seen)} ago"
            yield Noted("token-expired", bookie, why, {"subject": token.subject}, bookie)


def _releases(facts: Facts) -> Iterator[Noted]:
    by_release: dict[str, list[str]] = defaultdict(list)
    for one in facts.bookies:
        if one.report is not None:
            by_release[one.report.version].append(one.id)
    if len(by_release) > 1:
        where = "; ".join(f"{release}: {named(bookies)}" for release, bookies in sorted(by_release.items()))
        yield Noted("mixed-releases", where, f"bookies run {len(by_release)} releases")


def _used_twice(facts: Facts) -> Iterator[Noted]:
    """Yield ids that share an address, and ids that run on copies of one directory (have the same incarnation)."""
    addresses: dict[str, list[str]] = defaultdict(list)
    incarnations: dict[str, list[str]] = defaultdict(list)
    for one in facts.bookies:
        if one.state != "down":
            addresses[one.address].append(one.id)
            incarnations[one.incarnation].append(one.id)
    for address, bookies in addresses.items():
        if address and len(bookies) > 1:
            why = f"{len(bookies)} ids are registered at {address}: requests to all but one reach another bookie"
            yield Noted("address-used-twice", named(bookies), why)
    for incarnation, bookies in incarnations.items():
        if incarnation and len(bookies) > 1:
            why = f"they run on copies of one directory (incarnation {incarnation})"
            yield Noted("directory-used-twice", named(bookies), why)


def _clocks(facts: Facts) -> Iterator[Noted]:
    """Yield clocks far from the median of all, including that of the asking process, and doubts of the time."""
    known = {one.id: one.clock_ahead_us for one in facts.bookies if one.clock_ahead_us is not None}
    everybody = sorted([0, *known.values()])
    low, high = everybody[(len(everybody) - 1) // 2], everybody[len(everybody) // 2]
    off = set[BookieId]()
    for bookie, ahead in known.items():
        by = max(ahead - low, ahead - high, key=abs)
        if abs(by) > APART_US:
            yield Noted("clock-off", bookie, f"{between(by)} the median of all clocks", bookie=bookie)
            off.add(bookie)
    if facts.time_doubted:
        who = named([one.id for one in facts.doubting])
        why = f"{len(facts.doubting)} bookies doubt the time ({who}): nothing is ended by its age"
        yield Noted("clock-jump", "cluster", why)
    else:
        for one in facts.doubting:
            if one.id not in off:
                why = one.report.time_doubt if one.report is not None else ""
                yield Noted("clock-doubted", one.id, why, bookie=one.id)
    if facts.clock_doubt:
        yield Noted("clock-off", "this machine", facts.clock_doubt)


# -- bytes that collection keeps ------------------------------------------------------------------------------

WAITING_SHARE = 0.2
"""Share of the used bytes of a bookie's device above which waiting bytes are a finding."""

WAITING_BYTES = 1_000_000_000
"""Waiting bytes below which there is no finding, however small the device is."""

_WHAT = {
    Keeps.RECORDED: "recorded as deleted",
    Keeps.SECOND_LOOK: "absent without a record, kept until a second look",
    Keeps.BRAKE: "absent without a record, more than go unasked",
    Keeps.UNKNOWN_IDS: "with ids that the metadata store never gave",
    Keeps.MOVED: "copies that metadata places on others",
}
"""Words for waiting ledgers, by the reason why they are kept. Dead bytes in files are no ledgers: compaction frees
them."""


@dataclass(frozen=True, slots=True)
class WaitingBytes:
    """Bytes of ledgers that wait to be removed, by the reason; the largest first."""

    by_kind: tuple[tuple[Keeps, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(size for _, size in self.by_kind)

    def __str__(self) -> str:
        return ", ".join(f"{size} bytes {_WHAT[kind]}" for kind, size in self.by_kind)


def waiting_bytes(found: Collected | None) -> WaitingBytes:
    """Return the bytes that wait after a bookie's newest collection, by the reason; empty if there was none."""
    sums: dict[Keeps, int] = {}
    for one in found.kept if found is not None else ():
        if one.kind in _WHAT and one.bytes:
            kind = Keeps(one.kind)
            sums[kind] = sums.get(kind, 0) + one.bytes
    return WaitingBytes(tuple(sorted(sums.items(), key=lambda row: (-row[1], row[0]))))


def of_collection(facts: Facts) -> Iterator[Noted]:
    for one in facts.bookies:
        waits = waiting_bytes(one.report.collection if one.report is not None else None)
        if waits.total >= WAITING_BYTES and waits.total > WAITING_SHARE * _used(one, waits.total):
            yield Noted("waiting-bytes", one.id, f"{waits.total} bytes wait: {waits}", bookie=one.id)


def _used(one: BookieFacts, at_least: int) -> int:
    """Return the used bytes of a bookie's device, at least as many as wait; just those if it does not report them."""
    if one.total_bytes is None or one.free_bytes is None:
        return at_least
    return max(at_least, one.total_bytes - one.free_bytes)
