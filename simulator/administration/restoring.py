"""Backup and restore of the metadata with all that follows: acceptance, salvage and collection."""

from __future__ import annotations

import asyncio
import random

from buckram.client.maintain.salvage import bookie_addresses
from buckram.client.maintain.salvage import opened as salvage_opened
from buckram.cluster import Client
from buckram.core.ledgers.metadata_codec import parse
from buckram.errors import InvalidArgument, LedgerExists, NoSuchLedger, ReadFailed
from buckram.metadata.maintain.acceptance import accept, allow_collection
from buckram.metadata.maintain.backup import copy_of, restore
from buckram.metadata.tree.store import TreeStore
from buckram.streams.maintain.segment_list_repair import begin_after_deleted
from buckram.streams.shared.metadata import StreamStore
from buckram.types import BookieId, LedgerId
from simulator.administration.commands import Administrator
from simulator.engine.checkers.facts import write_set
from simulator.engine.healers import AUDITOR, REPLICATOR
from simulator.engine.loop import PROCESS, Process


async def back_up(admin: Administrator) -> None:
    """Copy the metadata while the cluster is in use."""
    began = admin.world.loop.time()

    async def work(store: TreeStore, process: Process) -> bool:
        made = await copy_of(store)
        admin.stage.backup, admin.stage.backup_began_at = made, began
        return True

    if await admin.ask_store("backup", work, puts_back=False):
        admin.did("backup")


async def put_back(admin: Administrator) -> None:
    """Restore the newest backup, accept that, salvage what is left, and let bookies collect the rest."""
    stage, made = admin.stage, admin.stage.backup
    if made is None:
        return
    await stage.nap(admin.rng, stage.plan.busy_s * 2)
    at_once = set(stage.busy)
    interrupted = admin.interrupted = False

    async def work(store: TreeStore, process: Process) -> bool:
        await restore(store, made)
        return True

    if not await admin.ask_store("restore", work, tries=30, puts_back=True):
        return
    interrupted = admin.interrupted
    if interrupted:
        admin.report.situation("a restore was interrupted and given again")
    admin.report.situation("a backup was restored")
    waits = admin.rules.unaccepted_at is not None
    admin.report.check("waiting", waits, "the metadata were restored, and are accepted although nobody did that")
    admin.rules.went_back()
    _give_up(admin, {ledger for one in made.keys if (ledger := _ledger_of(admin, one.key)) is not None})
    await stage.nap(admin.rng, admin.rng.choice((8.0, 40.0)))
    if not await _accept(admin, at_once):
        return
    admin.did("restore")
    _restart_healers(admin)
    await _salvage(admin)
    if admin.rng.random() < 0.6:
        await _collect(admin)


def _ledger_of(admin: Administrator, key: str) -> LedgerId | None:
    return admin.world.stores.layout.ledger_of(key)


def _give_up(admin: Administrator, known: set[LedgerId]) -> None:
    """Note what the restore gives up: ledgers that the backup does not know, and entries that its members lack.

    An entry remains promised if it was acknowledged before the backup began, and Qa of the bookies that the backup
    names for it have it on their disks now (docs/reference/guarantees.md).
    """
    rules, made = admin.rules, admin.stage.backup
    assert made is not None
    records = {ledger: parse(one.value) for one in made.keys if (ledger := _ledger_of(admin, one.key)) is not None}
    for ledger, written in rules.written.items():
        written.lost = written.lost or ledger not in known
        if ledger in known:
            written.lost = False
        for entry in list(written.acked):
            record = records.get(ledger)
            late = written.acked_at[entry] >= admin.stage.backup_began_at
            held = 0 if record is None else rules.copies.count(ledger, entry, write_set(record, entry))
            if record is None or late or held < max(record.ack_quorum, record.write_quorum - record.ack_quorum + 1):
                written.given_up[entry] = written.acked.pop(entry)


async def _accept(admin: Administrator, gone: set[BookieId]) -> bool:
    """Accept the restored metadata while all bookies run that will ever come back."""
    lost = sorted(name for name, machine in admin.world.machines.items() if machine.away)
    again: list[LedgerId] = []

    async def work(store: TreeStore, process: Process) -> bool:
        try:
            rng = random.Random(f"{process.name} {admin.stage.admin.seed}")
            accepted = await accept(store, rng, lost, lambda: begin_after_deleted(StreamStore(store)))
        except InvalidArgument:
            return (await store.history()).accepted  # an attempt whose answer was lost has accepted them
        again.extend(accepted.deleted_again)
        return True

    if not await admin.ask_store("accept", work, tries=30, puts_back=True):
        return False
    admin.report.situation("a restore was accepted")
    if again:
        admin.report.situation("deleted again by an acceptance")
    admin.rules.went_back()
    for ledger, written in admin.rules.written.items():
        if not written.deleted or written.lost:
            continue
        metadata = admin.rules.metadata(ledger)
        entries = list(written.given_up) + list(written.acked)
        holders = [b for b in admin.world.machines if admin.rules.copies.on_disk(b, ledger, entries)]
        back = metadata is not None and bool(entries) and not holders
        text = "ledger {} was deleted, no bookie has it, and it is back with the backup"
        admin.report.check("again", not back, text, ledger)
    return True


def _restart_healers(admin: Administrator) -> None:
    """Restart what runs for long, as docs/howto/operations.md asks for after a restore."""
    for host, process in list(admin.world.processes.items()):
        if host.startswith((AUDITOR, REPLICATOR, "r", "d")) and not process.dead:
            process.crash()


async def _salvage(admin: Administrator) -> None:
    """Bring back the ledgers that bookies hold and the backup does not know, or some of them."""
    share, brought = admin.rng.choice((0.5, 1.0)), list[LedgerId]()

    async def work(client: Client) -> bool:
        store = client.services.store
        addresses = await bookie_addresses(store)  # type: ignore[arg-type]  # guarded, and a TreeStore all the same
        runtime = admin.world.runtime(admin.world.processes[_host(client)])
        net = admin.stage.plan.configs.net
        async with salvage_opened(runtime, net, store, addresses) as asked:  # type: ignore[arg-type]  # as above
            for one in await asked.find():
                written = admin.rules.written.get(one.ledger_id)
                before = written.deleted_at if written is not None and written.deleted else 1e9
                wrong = before < admin.stage.backup_began_at  # the backup has it recorded
                text = "salvage offers ledger {}, which was deleted on purpose"
                admin.report.check("again", not wrong, text, one.ledger_id)
                if admin.rng.random() > share:
                    continue
                try:
                    await asked.bring_back(one, b"", None)
                    async with client.recover(one.ledger_id, password=b""):
                        brought.append(one.ledger_id)
                except (LedgerExists, NoSuchLedger, ReadFailed, InvalidArgument) as error:
                    admin.world.trace.note(_host(client), f"ledger {one.ledger_id} is not brought back: {error}")
        return True

    await admin.ask("vsalvage", work)
    for ledger in brought:
        admin.report.situation("a ledger was salvaged")
        written = admin.rules.written.get(ledger)
        if written is not None:
            written.lost = False


def _host(client: Client) -> str:
    return PROCESS.get().name


async def _collect(admin: Administrator) -> None:
    async def work(store: TreeStore, process: Process) -> bool:
        await allow_collection(store, random.Random(f"{process.name} {admin.stage.admin.seed}"))
        return True

    if await admin.ask_store("cluster collect", work, puts_back=False):
        admin.report.situation("bookies were told to collect")
        await asyncio.sleep(10.0)
