"""A disk that gets slow: its bookie says so, new ensembles avoid it, and it is well again when the disk is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.healing.test_lost_bookie import write
from tests.support.polling import eventually

from buckram.bookie.integrity import slow_disk_watch as disk_watch
from buckram.bookie.integrity.slow_disk_watch import DiskWatch
from buckram.cluster import Client
from buckram.core.ledgers.quorum import Quorum
from buckram.core.wire.messages import DISK_STATE, BookieInfoReply, GetBookieInfo
from buckram.health.gathering import Gatherer
from buckram.metadata.records.bookie_health import speed_key
from buckram.runtime.disk.faulty import DiskFaults, FaultyDisk
from buckram.testing import Cluster, cluster, in_process


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Disks of a cluster can be made slow: by a file for each that has the name of the bookie's directory."""

    def disk(path: str) -> FaultyDisk:
        return FaultyDisk(path, tmp_path / Path(path).name)

    monkeypatch.setattr(in_process, "LocalDisk", disk)
    monkeypatch.setattr(disk_watch, "WINDOW_S", 0.25)
    return tmp_path


def watch_of(c: Cluster, number: int) -> DiskWatch:
    bookie = c._nodes[number].bookie
    assert bookie is not None
    assert bookie.disk_watch is not None
    return bookie.disk_watch


async def state(client: Client, bookie: str) -> BookieInfoReply:
    reply = await client.services.pool.call(bookie, GetBookieInfo(DISK_STATE))
    assert isinstance(reply, BookieInfoReply)
    return reply


async def test_a_slow_disk_is_named_avoided_and_forgiven(faults: Path) -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        writer = await client.create(ensemble=(4, 4, 2))

        async def is_known() -> bool:
            await writer.append(b"x")
            return all(watch_of(c, number).state._known >= 6 for number in range(4))

        await eventually(is_known, "every bookie knows its own past")
        DiskFaults(1, slow_ms=1500).save(faults / "bookie-0")
        name = c.bookies[0]

        async def named() -> bool:
            await writer.append(b"x")
            return name in client.services.bookies.slow

        await eventually(named, "named")
        found = await state(client, name)
        (trouble,) = found.troubles
        assert trouble.what == "slow disk"
        assert "ms before" in trouble.why
        assert found.figures["sync_us"] >= 200_000
        assert client.services.bookies.slow == {name}
        gatherer = Gatherer.of(client)
        found_states = [(one.state.name, one.where) for one in (await gatherer.look()).findings]
        await gatherer.close()
        assert ("slow-disk", name) in found_states
        bookies = client.services.bookies
        for _ in range(30):
            assert name not in bookies.choose(Quorum(3, 3, 2)).members
        assert name in bookies.choose(Quorum(4, 4, 2)).members  # where there is no other choice
        assert list(bookies.read_order(c.bookies))[-1] == name
        DiskFaults(2).save(faults / "bookie-0")
        await writer.close()  # nobody writes there any more: it finds out by itself

        async def forgiven() -> bool:
            return not bookies.slow

        await eventually(forgiven, "forgiven")
        assert (await state(client, name)).troubles == ()


async def test_a_sync_that_does_not_end_counts_while_it_hangs(faults: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(bookies=1) as c, c.client() as client:
        watch = watch_of(c, 0)
        await write(client, 10, (1, 1, 1))
        await watch.look()
        commit = watch._store._log
        monkeypatch.setattr(type(commit), "sync_under_way_s", property(lambda self: 7.0))
        await watch.look()
        assert watch.mean_s == 7.0


async def test_what_is_told_to_others_hardly_changes_while_disks_are_fast(faults: Path) -> None:
    async with cluster(bookies=1) as c, c.client() as client:
        watch = watch_of(c, 0)
        told = set()
        for mean_s in (0.0001, 0.001, 0.004, 0.012):
            await watch._tell_speed(mean_s)
            told.add(watch._told_us)
        assert told == {12_500}
        await watch._tell_speed(0.4)
        assert 400_000 <= watch._told_us <= 600_000
        assert client is not None


async def test_what_was_told_in_a_session_that_is_lost_is_told_again(faults: Path) -> None:
    async with cluster(bookies=1) as c:
        watch = watch_of(c, 0)
        write_note = watch._speed_note.write

        async def write_and_lose(text: bytes) -> bool:
            written = await write_note(text)
            watch._session_lost()
            return written

        watch._speed_note.write = write_and_lose  # type: ignore[method-assign]
        await watch._tell_speed(0.1)
        assert watch._told_us == 0
        watch._speed_note.write = write_note  # type: ignore[method-assign]
        await watch._tell_speed(0.1)
        assert watch._told_us > 0


async def test_a_note_of_the_process_before_is_replaced_when_its_session_has_ended(faults: Path) -> None:
    async with cluster(bookies=1) as c, c.client() as client:
        watch = watch_of(c, 0)
        store = client.services.store
        key = speed_key(store, watch._bookie_id)
        await store.keys.create(key, b"1", ephemeral=True)
        await watch._tell_speed(0.1)
        assert watch._told_us == 0, "the key there is another's"
        await store.keys.delete(key, (await store.keys.get(key)).version)
        await watch._tell_speed(0.1)
        assert int((await store.keys.get(key)).value) == watch._told_us > 0
