"""A bookie that may have lost data: it serves what it has and never says "no such entry" (F6, M8)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.support.bookie_kit import KEY, Kit, add, batch, ledger_metadata, running, stored

from buckram.cli.app import run
from buckram.cli.shared.exits import Exit
from buckram.core.wire.messages import LOSS, BookieInfoReply, GetBookieInfo, ListEntries, Read, ReadLac
from buckram.errors import Code
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.disk.local import LOCK_NAME
from buckram.types import LedgerState

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])
MARK = b"this block will be damaged"


async def damaged(path: Path) -> TreeStore:
    """Ledgers 1 (open in metadata), 2 (not in metadata), 3 (closed later); then a block in the middle goes bad."""
    async with running(path) as kit:
        metadata: TreeStore = kit.metadata
        await kit.ledger(1)
        await kit.ledger(3)
        wire = await kit.wire()
        for ledger, entry, payload in ((1, 0, b"a"), (2, 0, b"b"), (3, 0, b"c"), (1, 1, MARK), (1, 2, b"d")):
            assert (await wire.call(add(ledger, entry, payload=payload))).code is Code.OK
        await close_in_metadata(kit, 3)
    hit = 0
    for file in path.glob("log-*"):  # noqa: ASYNC240
        data = bytearray(file.read_bytes())
        at = data.find(MARK)
        if at >= 0:
            data[at] ^= 0x40
            file.write_bytes(bytes(data))
            hit += 1
    assert hit
    return metadata


async def close_in_metadata(kit: Kit, ledger: int) -> None:
    found = await kit.metadata.read_ledger(ledger)
    closed = ledger_metadata([kit.id], LedgerState.CLOSED, last=0)
    await kit.metadata.write_ledger(ledger, closed, found.version)


@PROTOCOLS
async def test_absence_is_unknown_and_what_is_there_is_served(tmp_path: Path, protocol: int) -> None:
    metadata = await damaged(tmp_path)
    unknown = Code.UNKNOWN_LEDGER_STATE if protocol == 3 else Code.IO_ERROR  # v2 has no number that clients survive
    async with running(tmp_path, metadata=metadata) as kit:
        assert kit.store.limbo
        wire = await kit.wire(protocol)
        assert (await wire.call(Read(1, 0))).body == stored(1, 0, payload=b"a")
        for request in (Read(1, 1), Read(1, 9), Read(77, 0), Read(77, -1)):
            assert (await wire.call(request)).code in (unknown, Code.IO_ERROR)
        assert (await wire.call(Read(77, -1, fence=True, master_key=KEY))).code is unknown
        assert (await wire.call(Read(1, 9, fence=True, master_key=KEY))).code is unknown
        if protocol == 2:
            assert (await wire.call(batch(1, 9))).code is Code.IO_ERROR
        else:
            assert (await wire.call(ReadLac(78))).code is unknown
            assert (await wire.call(ListEntries(78))).code is unknown
            assert (await wire.call(ListEntries(1))).code is unknown
            assert (await wire.call(Read(78, -1, previous_lac=0, timeout_ms=5, piggyback=True))).code is unknown


async def test_adds_ask_metadata_again(tmp_path: Path) -> None:
    """The store may have lost a fence: only an open ledger in metadata lets normal adds in."""
    metadata = await damaged(tmp_path)
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire()
        assert (await wire.call(add(1, 3))).code is Code.OK
        assert (await wire.call(add(1, 4))).code is Code.OK
        assert (await wire.call(add(2, 1))).code is Code.FENCED
        assert (await wire.call(add(3, 1))).code is Code.FENCED
        assert (await wire.call(add(55, 0))).code is Code.FENCED
        assert (await wire.call(add(2, 1, recovery=True))).code is Code.OK


async def test_limbo_lasts_over_restarts_until_it_is_cleared(tmp_path: Path) -> None:
    metadata = await damaged(tmp_path)
    for _ in range(2):
        async with running(tmp_path, metadata=metadata) as kit:
            assert (await (await kit.wire(3)).call(Read(77, 0))).code is Code.UNKNOWN_LEDGER_STATE
    async with running(tmp_path, metadata=metadata) as kit:
        assert kit.store.loss == 1  # the same damage is no new loss
        kit.store.clear_limbo(1)
        assert (await (await kit.wire(3)).call(Read(77, 0))).code is Code.NO_LEDGER


async def test_an_operator_clears_it_with_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def command(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(run, ["bookie", "clear-limbo", "--data", str(tmp_path), *words])
        said = capfd.readouterr()
        return code, said.out + said.err

    metadata = await damaged(tmp_path)
    async with running(tmp_path, metadata=metadata):
        code, said = await command("--loss", "1", "--yes")
        assert code == Exit.FAILED
        assert "in use by another process" in said
    code, said = await command("--yes")
    assert code == Exit.USAGE
    assert "give --loss N" in said
    code, said = await command("--loss", "1")
    assert code == Exit.USAGE
    assert "add --yes" in said
    code, said = await command("--loss", "1", "--yes", "--json")
    assert (code, json.loads(said)) == (Exit.OK, {"directory": str(tmp_path), "cleared": True, "loss": 1})
    assert "nothing to do" in (await command())[1]
    async with running(tmp_path, metadata=metadata) as kit:
        assert not kit.store.limbo
        wire = await kit.wire(3)
        assert (await wire.call(Read(77, 0))).code is Code.NO_LEDGER
        assert (await wire.call(Read(1, 0))).body == stored(1, 0, payload=b"a")


async def test_damage_that_clearing_itself_finds_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The operator repaired what loss 1 may have cost. What opening the directory then finds is loss 2."""

    async def command(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(run, ["bookie", "clear-limbo", "--data", str(tmp_path), "--yes", *words])
        said = capfd.readouterr()
        return code, said.out + said.err

    metadata = await damaged(tmp_path)
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire(3)
        reply = await wire.call(GetBookieInfo(LOSS))
        assert isinstance(reply, BookieInfoReply)
        assert reply.loss == 1
        for entry in range(3, 6):
            assert (await wire.call(add(1, entry, payload=b"more of it"))).code is Code.OK
    active = max(path for path in tmp_path.glob("log-*") if b"more of it" in path.read_bytes())  # noqa: ASYNC240
    data = bytearray(active.read_bytes())
    data[data.find(b"more of it")] ^= 1
    active.write_bytes(bytes(data))
    for _ in range(2):
        code, said = await command("--loss", "1")
        assert code == Exit.USAGE
        assert "loss 2 was found after loss 1" in said
    async with running(tmp_path, metadata=metadata) as kit:
        assert (kit.store.limbo, kit.store.loss) == (True, 2)
    code, said = await command("--loss", "2")
    assert code == Exit.OK, said
    async with running(tmp_path, metadata=metadata) as kit:
        assert not kit.store.limbo
        reply = await (await kit.wire(3)).call(GetBookieInfo(LOSS))
        assert isinstance(reply, BookieInfoReply)
        assert reply.loss == 0


async def test_only_a_bookies_directory_is_cleared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        words = ["bookie", "clear-limbo", "--data", str(directory), "--yes"]
        assert await asyncio.to_thread(run, words) == Exit.USAGE
        assert str(directory) in capfd.readouterr().err
    assert [name for name in os.listdir(tmp_path) if name != LOCK_NAME] == []
