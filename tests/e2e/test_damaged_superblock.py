"""A bookie whose superblock is damaged says what to do, and doing it works."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.conftest import buckram

from buckram import connect
from buckram.errors import ChildFailed
from buckram.launch.processes import BookieProcess

pytestmark = pytest.mark.share(10, "clusters")


async def test_the_advice_for_a_damaged_superblock_works(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path / 'metadata.db'}"
    assert buckram("cluster", "init", uri=uri).code == 0
    running = {name: BookieProcess(uri, tmp_path / name, bookie_id=name) for name in ("b1", "b2")}
    try:
        for one in running.values():
            one.start()
            one.wait_ready()
        async with connect(uri) as client, client.create(ensemble="2/2/2") as writer:
            for entry in range(10):
                await writer.append(b"%d" % entry)
            ledger = writer.ledger_id
        running["b1"].kill()
        superblock = tmp_path / "b1" / "superblock"
        superblock.write_bytes(b"x" + superblock.read_bytes()[1:])
        running["b1"].start()
        try:
            running["b1"].wait_ready()
        except ChildFailed as error:
            said = str(error)
        assert f"{tmp_path / 'b1'}: file 'superblock': its checksum is wrong" in said
        assert "start one in an empty directory with another --id, then `buckram ledger repair` each ledger" in said
        # What it says:
        running["b3"] = BookieProcess(uri, tmp_path / "b3", bookie_id="b3")
        running["b3"].start()
        running["b3"].wait_ready()
        assert buckram("ledger", "repair", ledger, uri=uri).code == 0
        async with connect(uri) as client:
            metadata = await client.metadata(ledger)
            assert sorted(metadata.fragments[0].ensemble) == ["b2", "b3"]
            running["b2"].kill()  # the new one has everything
            async with client.open(ledger) as reader:
                assert await reader.read_payloads(0, 9) == [b"%d" % entry for entry in range(10)]
    finally:
        for one in running.values():
            one.kill()
