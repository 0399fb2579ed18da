"""`buckram cluster require identity`, and real bookie processes at addresses that were others'."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.e2e.conftest import Ended, buckram
from tests.support.polling import eventually

from buckram.cluster import Client, connect
from buckram.config import ClientConfig, NetConfig
from buckram.core.cluster.conviction import Deed, Evidence
from buckram.errors import BuckramError, ChildFailed, RecoveryFailed
from buckram.launch.processes import BookieProcess
from buckram.metadata.default import sqlite_uri
from buckram.metadata.records.bookie_health import accuse
from buckram.metadata.uri import init_cluster, open_store
from buckram.types import LedgerState

pytestmark = pytest.mark.share(10, "stores")

NET = NetConfig(connect_timeout_s=1.0, request_timeout_s=1.0)


async def cluster_at(path: Path) -> str:
    await asyncio.to_thread(path.mkdir)
    uri = sqlite_uri(path / "metadata.db")
    store = await open_store(uri)
    await init_cluster(store)
    await store.close()
    return uri


async def booted(uri: str, directory: Path, name: str, port: int = 0) -> BookieProcess:
    bookie = BookieProcess(uri, directory, bookie_id=name, port=port)

    async def ready() -> bool:
        bookie.start()
        try:
            await asyncio.to_thread(bookie.wait_ready)
        except ChildFailed as error:
            # A connection to somewhere else may have got the port meanwhile, for as long as it lasts.
            if "the address is in use" not in str(error):
                raise
            return False
        return True

    await eventually(ready)
    return bookie


def port_of(bookie: BookieProcess) -> int:
    assert bookie.ready is not None
    return bookie.ready.port


async def acknowledged(client: Client, shape: str) -> int:
    writer = await client.create(ensemble=shape)
    for n in range(10):
        await writer.append(f"entry {n}".encode())
    await writer.abandon()
    return writer.ledger_id


def test_required_identity_can_be_turned_off_again(tmp_path: Path) -> None:
    uri = asyncio.run(cluster_at(tmp_path / "ours"))

    async def required() -> bool:
        store = await open_store(uri)
        try:
            return await store.identity_required()
        finally:
            await store.close()

    said = buckram("cluster", "require", "identity", "--json", uri=uri)
    assert (said.code, said.json["identity_required"], said.json["silent_bookies"]) == (0, True, [])
    assert asyncio.run(required())
    assert "must identify themselves" in buckram("cluster", "require", "identity", uri=uri).out
    assert "need not" in buckram("cluster", "require", "identity", "--off", uri=uri).out
    assert not asyncio.run(required())


async def test_bookies_of_another_cluster_at_known_addresses_are_refused(tmp_path: Path) -> None:
    """As after a second `buckram up`, or where addresses of pods are reused: other bookies take the ports."""
    ours, theirs = await cluster_at(tmp_path / "ours"), await cluster_at(tmp_path / "theirs")
    names = ("b1", "b2")
    mine = {name: await booted(ours, tmp_path / "ours" / name, name) for name in names}
    others: dict[str, BookieProcess] = {}
    try:
        async with connect(ours, config=ClientConfig(quarantine_s=0.5), net=NET) as client:
            ledger = await acknowledged(client, "2/2/2")
            open_writer = await client.create(ensemble="2/2/2")
            assert await open_writer.append(b"ours") == 0
            for name in names:
                mine[name].kill()
                others[name] = await booted(theirs, tmp_path / "theirs" / name, name, port_of(mine[name]))
            with pytest.raises(RecoveryFailed):
                await client.recover(ledger)
            assert (await client.metadata(ledger)).state is LedgerState.IN_RECOVERY
            with pytest.raises((BuckramError, TimeoutError)):
                async with asyncio.timeout(5):
                    await open_writer.append(b"to nobody")
            assert open_writer.last_confirmed == 0
            for name in names:
                others[name].kill()
                mine[name].start()
                await asyncio.to_thread(mine[name].wait_ready)
            await client.services.bookies.refresh()
            async with client.recover(ledger) as reader:
                assert reader.last_confirmed == 9
    finally:
        for bookie in (*mine.values(), *others.values()):
            bookie.kill()


async def test_an_empty_replacement_at_the_old_address_loses_no_entries(tmp_path: Path) -> None:
    uri = await cluster_at(tmp_path / "ours")
    mine = {name: await booted(uri, tmp_path / name, name) for name in ("b1", "b2")}
    new: BookieProcess | None = None
    try:
        async with connect(uri, config=ClientConfig(quarantine_s=0.5), net=NET) as client:
            ledger = await acknowledged(client, "2/2/2")
            for bookie in mine.values():
                bookie.kill()
            # The list that the client has may be older than this, or newer.
            new = await booted(uri, tmp_path / "b3", "b3", port_of(mine["b1"]))
            with pytest.raises(RecoveryFailed):
                await client.recover(ledger)
            new.kill()
            for bookie in mine.values():
                bookie.start()
                await asyncio.to_thread(bookie.wait_ready)
            await client.services.bookies.refresh()
            async with client.recover(ledger) as reader:
                assert reader.last_confirmed == 9
    finally:
        for bookie in (*mine.values(), *([new] if new else [])):
            bookie.kill()


async def convicted(uri: str, bookie: str) -> None:
    """Accuse a bookie, as a repair does that finds an acknowledged entry missing there."""
    store = await open_store(uri)
    try:
        await accuse(store, [Evidence(Deed.UNSTORED, bookie, "it", 1, 0, "it acknowledged entry 0 and denies it")])
    finally:
        await store.close()


async def test_writers_avoid_an_accused_bookie_until_it_is_pardoned(tmp_path: Path) -> None:
    uri = await cluster_at(tmp_path / "ours")
    bookies = {name: await booted(uri, tmp_path / "ours" / name, name) for name in ("b1", "b2", "b3")}

    async def run(*words: object, stdin: bytes = b"") -> Ended:
        return await asyncio.to_thread(buckram, *words, uri=uri, stdin=stdin)

    async def needs_all() -> Ended:
        return await run("ledger", "write", "--ensemble", "3/3/2", "--close", stdin=b"one\n")

    try:
        async with connect(uri, net=NET) as client, client.create(ensemble="2/2/2") as writer:
            await writer.append(b"before")
            liar = writer.metadata.last_fragment.ensemble[0]
            await convicted(uri, liar)
            async with asyncio.timeout(20):
                while liar in writer.metadata.last_fragment.ensemble:
                    await writer.append(b"and on")
            said = (await run("cluster", "check")).out
            assert f"error bookie-convicted {liar}: convicted: unstored: entry 0 of ledger 1" in said
            refused = await needs_all()
            assert refused.code != 0
            unsaid = await run("cluster", "pardon", liar)
            assert (unsaid.code, "add --yes" in unsaid.err) == (2, True)
            assert (await run("cluster", "pardon", liar, "--yes", "--json")).json == {"bookie": liar, "pardoned": True}
            assert "was not accused of anything" in (await run("cluster", "pardon", liar, "--yes")).out
            assert "bookie-convicted" not in (await run("cluster", "check")).out
            taken = await needs_all()
            assert taken.code == 0, taken.err
            assert await writer.append(b"after") > 0
    finally:
        for bookie in bookies.values():
            await asyncio.to_thread(bookie.kill)
