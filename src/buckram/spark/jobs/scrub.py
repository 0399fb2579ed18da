"""The job `scrub`: it reads every replica of every ledger from its bookie, verifies it, and lists bad replicas.

Each bad replica is listed with the command that repairs it. The job only reads, and skips the parts of ledgers that can
still grow. Only sums of digests and findings go through Spark. The work is divided by bookie, so that at most
`tasks_per_bookie` tasks read from one, and into rounds: the findings of a round are written before the next one begins,
and a run with the name of an earlier one continues where that stopped. Not here: verifying a piece
(`client/maintain/replica_audit.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from buckram.client.maintain.replica_audit import ReplicaAuditor, differing
from buckram.core.cluster.conviction import UNFIT, Deed, Evidence
from buckram.core.ledgers.metadata import names_mac
from buckram.core.ledgers.replica_audit import Piece, PieceReport, plan_pieces
from buckram.core.wire.introduction import Peer
from buckram.errors import InvalidArgument, NoSuchLedger
from buckram.metadata.records.bookie_health import accuse
from buckram.runtime.net.pace import Pace
from buckram.spark.jobs.executor_tasks import Driver, Progress, Row, driver, executor_runtime, in_task, spread
from buckram.spark.jobs.reports import RUN, BadReplica, Report, ScrubReport, merge_replicas, open_report, run_name
from buckram.types import LedgerId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buckram.cluster import Client
    from buckram.spark.shared.cluster_uri import ClusterUri

MIB = 1024 * 1024
SCHEMA = (
    "run string, ledger long, bookie string, first long, last long, position int, entries long, good long, "
    "missing long, damaged long, bytes long, state string, bad array<long>, error string, at double, "
    "sums array<struct<block: long, share: int, sum: long>>"
)
_PAGE = 500
_MOST_DIFFERENCES = 1000
_ROUND_S = 30.0
Key = tuple[LedgerId, str, int, int]


@dataclass(frozen=True, slots=True)
class _Task:
    """Pieces on one bookie that a task reads one after another."""

    run: str
    cluster: ClusterUri
    peer: Peer | None
    pieces: tuple[Piece, ...]
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """The limits of a scrub. `bytes_per_s` is per bookie; None for no limit.

    A round reads about `round_bytes`, or less if `bytes_per_s` would make it last longer than half a minute, because a
    run that was stopped repeats its last round.
    """

    bytes_per_s: float | None = None
    tasks_per_bookie: int = 2
    piece_bytes: int = 64 * MIB
    round_bytes: int = 2048 * MIB

    def round_of(self, bookies: int) -> int:
        """Return the bytes of a round that reads from so many bookies."""
        if self.bytes_per_s is None:
            return self.round_bytes
        return min(self.round_bytes, max(1, int(self.bytes_per_s * bookies * _ROUND_S)))

    def __post_init__(self) -> None:
        for name, least in (("tasks_per_bookie", 1), ("piece_bytes", MIB), ("round_bytes", MIB)):
            if getattr(self, name) < least:
                raise InvalidArgument(f"{name} = {getattr(self, name)}: needs at least {least}")
        if self.bytes_per_s is not None and self.bytes_per_s < 1:
            raise InvalidArgument(f"bytes_per_s = {self.bytes_per_s}: needs at least 1, or None for no limit")


def scrub(
    session: SparkSession,
    metadata: str,
    *,
    ledgers: Sequence[LedgerId] | None = None,
    streams: Sequence[str] | None = None,
    report: str | None = None,
    table: str | None = None,
    run: str | None = None,
    settings: ScrubSettings | None = None,
    progress: Progress = lambda done, total: None,
) -> ScrubReport:
    """Audit these ledgers, the segments of these streams, or all ledgers.

    `report` or `table`: where rows of SCHEMA are added (docs/tutorial/spark.md). `run`: the run's name; a run whose
    name is in the report continues. `progress` is called with the number of ledgers done and of all. Raises
    NoSuchLedger, NoSuchStream, InvalidArgument, MetadataUnavailable.
    """
    chosen, name = settings or ScrubSettings(), run_name("scrub", run)
    began = time.monotonic()
    with driver(metadata) as home, open_report(session, SCHEMA, report, table) as kept:
        wanted = home.run(partial(_choose_ledgers, ledgers=ledgers, streams=streams))
        found = ScrubReport(name, len(wanted))
        known = _finished_pieces(kept, name)
        for page in range(0, len(wanted), _PAGE):
            part = wanted[page : page + _PAGE]
            pieces, growing = home.run(partial(_pieces, ledgers=part, named=ledgers, settings=chosen))
            found.growing += growing
            todo = [piece for piece in pieces if _key(piece) not in known]
            for batch in _rounds(todo, chosen.round_of(len({piece.bookie for piece in todo}))):
                peers = home.run(_peers)
                tasks = _make_tasks(name, home.cluster, batch, peers, chosen)
                kept.add(spread(session, tasks, _audit, SCHEMA))
                progress(page + part.index(batch[-1].ledger), len(wanted))
            progress(min(page + _PAGE, len(wanted)), len(wanted))
        _summarise(home, kept, found)
    found.seconds = round(time.monotonic() - began, 3)
    return found


# -- planning ---------------------------------------------------------------------------------------------


async def _choose_ledgers(
    client: Client, ledgers: Sequence[LedgerId] | None, streams: Sequence[str] | None
) -> list[LedgerId]:
    if ledgers is None and streams is None:
        return [ledger async for ledger in client.list()]
    found = dict.fromkeys(ledgers or ())
    for stream in streams or ():
        space, _, bare = stream.rpartition("/")
        async for row in client.namespace(space or "default").segments(bare):
            if row.offloaded is None:  # `buckram stream check` reads the files of history.
                found[row.ledger] = None
    return list(found)


async def _pieces(
    client: Client, ledgers: Sequence[LedgerId], named: Sequence[LedgerId] | None, settings: ScrubSettings
) -> tuple[list[Piece], int]:
    found: list[Piece] = []
    growing = 0
    for ledger in ledgers:
        try:
            metadata = await client.metadata(ledger)
        except NoSuchLedger:
            if named is not None and ledger in named:
                raise
            continue  # The ledger was deleted since it was listed.
        growing += not metadata.closed
        found += plan_pieces(ledger, metadata, settings.piece_bytes)
    return found, growing


async def _peers(client: Client) -> dict[str, Peer]:
    services = client.services
    await services.bookies.refresh()
    seen = services.bookies.bookies
    return {
        info.bookie_id: Peer(info.address, services.identities.expected(info.bookie_id))
        for info in (*seen.readonly.values(), *seen.writable.values())
        if info.address is not None
    }


def _rounds(pieces: Sequence[Piece], round_bytes: int) -> Iterator[list[Piece]]:
    """Divide the pieces into rounds; the pieces of one range, which are compared, stay in one round."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        if size >= round_bytes and (piece.ledger, piece.first) != (batch[-1].ledger, batch[-1].first):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.bytes
    if batch:
        yield batch


def _make_tasks(
    run: str, cluster: ClusterUri, pieces: Sequence[Piece], peers: Mapping[str, Peer], settings: ScrubSettings
) -> list[_Task]:
    """Make tasks that read from one bookie each, in an order that keeps all bookies busy."""
    parts: dict[tuple[int, str], list[Piece]] = {}
    assigned: dict[str, int] = {}
    for piece in sorted(pieces, key=lambda p: (p.ledger, p.first)):
        turn = assigned.get(piece.bookie, 0)
        assigned[piece.bookie] = turn + 1
        parts.setdefault((turn % settings.tasks_per_bookie, piece.bookie), []).append(piece)
    rate = None if settings.bytes_per_s is None else settings.bytes_per_s / settings.tasks_per_bookie
    return [_Task(run, cluster, peers.get(bookie), tuple(part), rate) for (_, bookie), part in sorted(parts.items())]


# -- in an executor ---------------------------------------------------------------------------------------


def _audit(task: _Task) -> list[Row]:
    async def main() -> list[Row]:
        pace = Pace(task.bytes_per_s)
        peers = {piece.bookie: task.peer for piece in task.pieces}
        async with ReplicaAuditor(executor_runtime(task.cluster), peers) as auditor:
            return [_row(task.run, await auditor.check(piece, pace)) for piece in task.pieces]

    return in_task(main)


def _row(run: str, found: PieceReport) -> Row:
    piece = found.piece
    sums = [{"block": s.block, "share": s.share, "sum": s.sum - (s.sum >> 63 << 64)} for s in found.sums]
    return {
        RUN: run,
        "ledger": piece.ledger,
        "bookie": piece.bookie,
        "first": piece.first,
        "last": piece.last,
        "position": piece.position,
        "entries": piece.entries,
        "good": found.good,
        "missing": found.missing,
        "damaged": found.damaged,
        "bytes": found.bytes,
        "state": found.state,
        "bad": found.bad,
        "error": f"entry {found.lie_entry}: {found.lie}" if found.lie else found.error or _describe_unfit(found),
        "at": time.time(),
        "sums": sums,
    }


def _describe_unfit(found: PieceReport) -> str:
    return "" if found.unfit < 0 else f"entry {found.unfit}: {UNFIT}"


# -- findings ---------------------------------------------------------------------------------------------


def _key(piece: Piece) -> Key:
    return piece.ledger, piece.bookie, piece.first, piece.last


def _finished_pieces(kept: Report, run: str) -> dict[Key, None]:
    """Return the pieces that this run has read. Those whose bookie could not be read are left out, to be read again."""
    rows = kept.found(run)
    if rows is None:
        return {}
    done = rows.where("state != 'unknown'").select("ledger", "bookie", "first", "last").collect()
    return {(row["ledger"], row["bookie"], row["first"], row["last"]): None for row in done}


def _summarise(home: Driver, kept: Report, found: ScrubReport) -> None:
    """Add up a run's findings, ledger by ledger.

    This is one plain query, because aggregation by Spark costs more CPU than reading a gigabyte.
    """
    rows = kept.found(found.run)
    if rows is None:
        return
    ordered = rows.orderBy("ledger", "first", "last", "bookie", "at").toLocalIterator()
    groups: list[dict[str, Any]] = []
    for _, own in groupby(ordered, key=lambda row: row["ledger"]):
        # A piece that was read twice counts as the last reading found it.
        pieces = list({(row["first"], row["last"], row["bookie"]): row.asDict(recursive=True) for row in own}.values())
        found.replicas += len({piece["bookie"] for piece in pieces})
        found.entries += sum(piece["good"] for piece in pieces)
        found.bytes += sum(piece["bytes"] for piece in pieces)
        wrong = [piece for piece in pieces if piece["state"] != "good"]
        if wrong:
            home.run(
                partial(_record_evidence, rows=[piece for piece in wrong if piece["state"] in ("lied", "damaged")])
            )
            bad, unknown = merge_replicas(wrong, home.run(partial(_repair_command, ledger=wrong[0]["ledger"])))
            found.bad += bad
            found.unknown += unknown
        if len(groups) < _MOST_DIFFERENCES:
            groups += _differing_blocks(pieces)
    for group in groups[:_MOST_DIFFERENCES]:
        found.bad += home.run(partial(_compare_block, group=group))


def _differing_blocks(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks of a ledger whose replicas do not all have the same sum."""
    sums: dict[tuple[int, int, int, int], dict[int, None]] = {}
    for piece in pieces:
        for one in piece["sums"]:
            sums.setdefault((piece["first"], piece["last"], one["block"], one["share"]), {})[one["sum"]] = None
    return [
        {"ledger": pieces[0]["ledger"], "first": first, "last": last, "block": block, "share": share}
        for (first, last, block, share), different in sums.items()
        if len(different) > 1
    ]


async def _repair_command(client: Client, ledger: LedgerId) -> str:
    """Return the command that repairs the ledger; empty if it was deleted."""
    try:
        secret = (await client.metadata(ledger)).password
    except NoSuchLedger:
        return ""
    return f"buckram ledger repair {ledger}" + (' --password "$LEDGER_PASSWORD"' if secret else "")


async def _record_evidence(client: Client, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record evidence against bookies: lies, and copies that do not match a MAC (F21)."""
    bookies, now = client.services.bookies, client.services.runtime.clock.wall_us()
    wrong = [row for row in rows if row["error"]]
    try:
        sealed = bool(wrong) and names_mac(await client.metadata(wrong[0]["ledger"]))
    except NoSuchLedger:
        return  # The ledger was deleted meanwhile.
    found = [
        Evidence(
            Deed.MIXED if row["state"] == "lied" else Deed.DAMAGED,
            row["bookie"],
            bookies.incarnation(row["bookie"]) or "",
            row["ledger"],
            (row["bad"] or [-1])[0],
            row["error"],
            now,
        )
        for row in wrong
        if row["state"] == "lied" or sealed
    ]
    if found:
        await accuse(client.services.store, found)


async def _compare_block(client: Client, group: Mapping[str, Any]) -> list[BadReplica]:
    """Compare the entries of a block whose sums differ although all copies are good.

    Different LACs in the entries' headers are not an error; different contents are reported as `differs`.
    """
    ledger = group["ledger"]
    try:
        metadata = await client.metadata(ledger)
    except NoSuchLedger:
        return []
    size = metadata.ensemble_size
    pieces = [p for p in plan_pieces(ledger, metadata, MIB) if p.first <= group["last"] and p.last >= group["first"]]
    if not pieces:
        return []
    block = pieces[0].block
    low, high = max(group["block"] * block, group["first"]), min((group["block"] + 1) * block - 1, group["last"])
    mirrored = size == metadata.write_quorum
    entries = [entry for entry in range(low, high + 1) if mirrored or entry % size == group["share"]]
    holders = {
        p.bookie: p
        for p in pieces
        if entries and (mirrored or (p.position - entries[0]) % size < metadata.write_quorum)
    }
    async with ReplicaAuditor(client.services.runtime, await _peers(client)) as auditor:
        other = await differing(auditor, list(holders.values()), entries)
    detail = "each copy has a good digest, but they are not the same: find out which one is right before repairing"
    return [
        BadReplica(ledger, bookie, "differs", len(other), tuple(other[:10]), detail, "") for bookie in holders if other
    ]
