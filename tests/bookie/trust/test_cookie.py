"""Whose directory is it: the start decisions, row by row. A wiped or swapped disk never passes for the old bookie."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import FlakyMetadata, add, memory_metadata, running, start

from buckram.bookie.trust import cookie
from buckram.core.cluster.cookie import parse_cookie
from buckram.errors import Code, ConfigError, InvalidArgument, MetadataUnavailable, NoSuchKey, WrongCookie
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.production import production_runtime
from buckram.types import History


async def started_once(path: Path, metadata: TreeStore, **config: Any) -> str:
    async with running(path, metadata=metadata, **config) as kit:
        return kit.id


async def test_a_first_start_writes_the_same_cookie_to_both_places(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        record = (tmp_path / cookie.COOKIE_FILE).read_bytes()
        assert (await kit.metadata.read_cookie(kit.id)).value == record
        parsed = parse_cookie(record)
        assert parsed.bookie_host == kit.id
        assert parsed.instance_id == await kit.metadata.instance_id()
        assert kit.bookie.info is not None
        assert kit.bookie.info.incarnation
        assert kit.bookie.info.incarnation not in record.decode()
        assert not (tmp_path / cookie.UNFINISHED_FILE).exists()


async def test_a_directory_keeps_its_id_under_another_port(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    async with running(tmp_path, metadata=metadata) as kit:
        first, port = kit.id, kit.bookie.info.address.port  # type: ignore[union-attr]
    async with running(tmp_path, metadata=metadata, advertise="192.0.2.7:4000") as kit:
        assert kit.id == first == f"127.0.0.1:{port}"
        assert str(kit.bookie.info.address) == "192.0.2.7:4000"  # type: ignore[union-attr]
        found = (await metadata.bookies()).writable[first]
        assert str(found.address) == "192.0.2.7:4000"


async def test_an_id_is_apart_from_the_address(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    assert await started_once(tmp_path, metadata, bookie_id="alpha") == "alpha"
    assert await started_once(tmp_path, metadata) == "alpha"
    with pytest.raises(WrongCookie, match="alpha"):
        await start(tmp_path, metadata=metadata, bookie_id="beta")


@pytest.mark.parametrize("bad", ["a/b", "with space", "readonly"])
async def test_a_bad_id_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InvalidArgument, match="bookie id"):
        await start(tmp_path, bookie_id=bad)


async def test_a_wiped_directory_is_refused(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    await started_once(tmp_path / "a", metadata, bookie_id="alpha")
    shutil.rmtree(tmp_path / "a")
    for _ in range(2):
        with pytest.raises(WrongCookie, match="wiped"):
            await start(tmp_path / "a", metadata=metadata, bookie_id="alpha")
    assert list((tmp_path / "a").glob("VERSION*")) == []
    assert not (await metadata.bookies()).writable


async def test_data_gone_but_cookie_kept_is_refused(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    await started_once(tmp_path, metadata)
    disk = LocalDisk(str(tmp_path), "inline")
    for name in disk.names():
        if name != cookie.COOKIE_FILE:
            disk.remove(name)
    disk.close()
    with pytest.raises(WrongCookie, match="data is gone"):
        await start(tmp_path, metadata=metadata)


async def test_a_directory_of_another_bookie_is_refused(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    await started_once(tmp_path / "a", metadata, bookie_id="alpha")
    await started_once(tmp_path / "b", metadata, bookie_id="beta")
    with pytest.raises(WrongCookie):
        await start(tmp_path / "a", metadata=metadata, bookie_id="beta")


async def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    await started_once(tmp_path, await memory_metadata(), bookie_id="alpha")
    with pytest.raises(WrongCookie, match="cluster"):
        await start(tmp_path, metadata=await memory_metadata(seed=99), bookie_id="alpha")


async def test_a_removed_cookie_is_refused(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    await started_once(tmp_path, metadata, bookie_id="alpha")
    found = await metadata.read_cookie("alpha")
    await metadata.delete_cookie("alpha", found.version)
    with pytest.raises(WrongCookie, match="no cookie"):
        await start(tmp_path, metadata=metadata)


async def test_a_bookie_that_joined_after_the_backup_comes_back_until_the_restore_is_accepted(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    bookie_id = await started_once(tmp_path, metadata)
    await metadata.delete_cookie(bookie_id, (await metadata.read_cookie(bookie_id)).version)
    await set_history(metadata, History(3, "restored", accepted=True))
    with pytest.raises(WrongCookie, match=r"cluster restore.*accept-restore"):
        await start(tmp_path, metadata=metadata)
    await set_history(metadata, History(3, "restored", accepted=False))
    assert await started_once(tmp_path, metadata) == bookie_id
    assert (await metadata.read_cookie(bookie_id)).value == (tmp_path / cookie.COOKIE_FILE).read_bytes()


async def test_a_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(WrongCookie, match=r"holiday\.jpg"):
        await start(tmp_path)


async def test_older_cookie_files_are_read(tmp_path: Path) -> None:
    metadata = await memory_metadata()
    await started_once(tmp_path, metadata, bookie_id="alpha")
    file = tmp_path / cookie.COOKIE_FILE
    file.write_bytes(b"4" + file.read_bytes()[1:])
    assert await started_once(tmp_path, metadata) == "alpha"


class Crashing:
    """A metadata store whose cookie writes stop the process before or after they took effect."""

    def __init__(self, inner: TreeStore, *, after: bool) -> None:
        self._inner, self._after = inner, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write_cookie(self, bookie_id: str, record: bytes, version: int | None, also: Any = ()) -> int:
        if self._after:
            await self._inner.write_cookie(bookie_id, record, version, also)
        raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True])
async def test_a_first_start_that_was_cut_off_can_be_repeated(tmp_path: Path, after: bool) -> None:
    metadata = await memory_metadata()
    disk = LocalDisk(str(tmp_path), "inline")
    with pytest.raises(KeyboardInterrupt):
        await cookie.claim(
            disk,
            Crashing(metadata, after=after),
            "alpha",
            "x:1",
            rng=random.Random(1),
            clock=production_runtime(1).clock,
        )  # type: ignore[arg-type]
    disk.close()
    assert await started_once(tmp_path, metadata) == "alpha"
    async with running(tmp_path, metadata=metadata) as kit:
        assert (await (await kit.wire()).call(add(1, 0))).code is Code.OK


class Forgetful(FlakyMetadata):
    """Loses the reply to the first cookie write."""

    lost = False

    async def write_cookie(self, bookie_id: str, record: bytes, version: int | None, also: Any = ()) -> int:
        written: int = await self._inner.write_cookie(bookie_id, record, version, also)
        if not self.lost:
            self.lost = True
            raise MetadataUnavailable("reply lost")
        return written


async def test_a_lost_reply_to_the_cookie_write_is_no_failure(tmp_path: Path) -> None:
    async with running(tmp_path, metadata=Forgetful(await memory_metadata()), bookie_id="alpha") as kit:
        assert kit.id == "alpha"


async def test_two_bookies_of_one_directory(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        with pytest.raises(OSError, match="in use"):
            await start(tmp_path, metadata=kit.metadata)
        assert (await (await kit.wire()).call(add(1, 0))).code is Code.OK


async def test_a_port_in_use(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as kit:
        port = kit.bookie.info.address.port  # type: ignore[union-attr]
        with pytest.raises(OSError, match="in use"):
            await start(tmp_path / "b", metadata=kit.metadata, port=port)
        with pytest.raises(NoSuchKey):
            await kit.metadata.read_cookie("b")


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"advertise": "nowhere"}, {"advertise": "host:99999999"}])
async def test_addresses_that_nobody_could_use(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="advertise"):
        await start(tmp_path, **options)  # type: ignore[arg-type]
