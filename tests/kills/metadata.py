"""Commands about a whole metadata store: `cluster init`, `backup`, `restore`, `accept-restore` and `move-metadata`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.kills.harness import Case, Ended
from tests.kills.world import Command, World, buckram, use, with_store

from buckram import sync
from buckram.cluster import Client
from buckram.errors import NoSuchLedger
from buckram.metadata.maintain.backup import (
    Backup,
    counters,
    everything,
    read_file,
    restore,
    set_history,
    write_file,
)
from buckram.metadata.tree.store import TreeStore
from buckram.types import History

PAYLOADS = [b"entry %d" % number for number in range(20)]


async def written(client: Client) -> int:
    async with await client.create() as writer:
        await writer.append_many(PAYLOADS)
        return writer.ledger_id


async def is_whole(client: Client, ledger: int) -> bool:
    async with await client.open(ledger) as reader:
        return [bytes(one.payload) for one in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS


def init(world: World) -> Case:
    folder = world.new_folder()
    uri = world.new_uri(folder)

    def check(_: Ended) -> None:
        async def used(store: TreeStore) -> None:
            assert await store.instance_id()
            assert await store.allocate_ledger_id() < await store.allocate_ledger_id()

        with_store(uri, used)

    return Case(("cluster", "init", "--metadata", uri), folder, check)


# -- backups ------------------------------------------------------------------------------------------------


def older_and_newer(world: World) -> tuple[Path, Path, int]:
    """Two backups of the cluster that lives, and a ledger that is in both."""
    older, newer = world.folder / "older", world.folder / "newer"
    if "backups" not in world.kept:
        world.kept["backups"] = use(world.uri, written)
        buckram("cluster", "backup", older, "--metadata", world.uri)
        use(world.uri, written)
        buckram("cluster", "backup", newer, "--metadata", world.uri)
    return older, newer, world.kept["backups"]


def backup(world: World) -> Case:
    """A file that is there keeps its content until the new one is whole."""
    folder, (older, _, _) = world.new_folder(), older_and_newer(world)
    file = folder / "backup"
    file.write_bytes(older.read_bytes())
    before, ledger = read_file(older).ledgers, use(world.uri, written)

    def died() -> None:
        assert read_file(file).ledgers >= before

    def check(_: Ended) -> None:
        assert [one.name for one in folder.iterdir()] == ["backup"]
        made = read_file(file)
        assert made.ledgers > before
        assert any(one.key.endswith(f"{ledger:019d}") for one in made.keys) or world.store.kind != "sqlite"

    return Case(("cluster", "backup", str(file), "--metadata", world.uri), folder, check, died)


def of_other_place(made: Backup, store: TreeStore) -> Backup:
    """The same backup as one of a cluster at the place of this store."""

    def moved(key: str) -> str:
        for old, new in ((made.own, store.own), (made.root, store.layout.root)):
            if key == old or key.startswith(old + "/"):
                return new + key.removeprefix(old)
        return key

    kept = [one._replace(key=moved(one.key)) for one in made.keys]
    return replace(made, root=store.layout.root, own=store.own, keys=kept)


def restored(world: World) -> Case:
    """A store that holds a newer state is put back."""
    folder, (older, newer, _) = world.new_folder(), older_and_newer(world)
    uri, file = world.new_uri(folder), folder.with_suffix(".backup")

    async def begin(store: TreeStore) -> None:
        write_file(file, of_other_place(read_file(older), store))
        later = of_other_place(read_file(newer), store)
        await restore(store, later)
        await set_history(store, History(later.history.epoch, later.history.restore))

    with_store(uri, begin)

    def check(_: Ended) -> None:
        wanted = read_file(file)

        async def same(store: TreeStore) -> None:
            assert not (await store.history()).accepted
            skipped = {store.layout.history, *counters(store)}
            found = {one.key: one.value for one in await everything(store) if one.key not in skipped}
            kept = {one.key: one.value for one in wanted.keys if one.key not in skipped}
            assert kept.items() <= found.items()
            assert not any(value for key, value in found.items() if key not in kept)
            assert await store.next_ledger_id() >= wanted.next_id

        with_store(uri, same)

    return Case(("cluster", "restore", str(file), "--metadata", uri, "--yes"), folder, check)


def accept(world: World) -> Case:
    """The cluster went back to before a ledger was deleted, a stream truncated, and another ledger written."""
    folder, file = world.new_folder(), world.new_folder() / "backup"
    uri, space = world.turned_back.uri, world.name("accept")
    kept, deleted = use(uri, written), use(uri, written)
    with sync.connect(uri) as client:
        client.namespaces.create(space, ensemble="3/3/2")
        namespace = client.namespace(space)
        for part in (0, 1):
            with namespace.writer("truncated") as writer:
                writer.append_many([b"%d" % (5 * part + number) for number in range(5)])
        first = next(iter(namespace.segments("truncated"))).ledger
        buckram("cluster", "backup", file, "--metadata", uri)
        after = use(uri, written)
        client.delete(deleted)
        namespace.truncate("truncated", before=5)
    for bookie in world.turned_back.bookies:
        buckram("bookie", "collect", bookie, "--metadata", uri)  # It learns what was deleted.
    buckram("cluster", "restore", file, "--yes", "--metadata", uri)

    def check(_: Ended) -> None:
        async def judged(client: Client) -> None:
            assert await is_whole(client, kept)
            new = await written(client)
            assert new > after
            assert await is_whole(client, new)
            for gone in (deleted, first):
                try:
                    await client.open(gone)
                except NoSuchLedger:
                    continue
                raise AssertionError(f"ledger {gone} came back")
            found = [bytes(one.value) async for one in client.namespace(space).read("truncated")]
            assert found == [b"%d" % number for number in range(5, 10)]

        use(uri, judged)

    return Case(("cluster", "accept-restore", "--yes", "--metadata", uri), folder, check)


# -- another store ------------------------------------------------------------------------------------------


def move(world: World) -> Case:
    folder, (older, _, _) = world.new_folder(), older_and_newer(world)
    source = f"sqlite://{folder}/source.db"
    target = world.new_uri(folder)

    async def begin(store: TreeStore) -> None:
        made = of_other_place(read_file(older), store)
        await restore(store, made)
        await set_history(store, History(made.history.epoch, made.history.restore))

    with_store(source, begin)

    def check(_: Ended) -> None:
        async def counted(store: TreeStore) -> tuple[str, int, bool]:
            total, after = 0, -1
            while page := await store.list_ledgers(after=after):
                total, after = total + len(page), page[-1]
            return await store.instance_id(), total, (await store.history()).accepted

        there, here = with_store(target, counted), with_store(source, counted)
        assert (there[:2], there[2], here[2]) == (here[:2], True, False)

    return Case(("cluster", "move-metadata", source, target, "--json"), folder, check)


def abandon(world: World) -> Case:
    """A move that died is given up, unless it had reached the end: then it says that it has to be completed."""
    case = move(world)
    source = case.words[2]

    def check(done: Ended) -> None:
        async def usable(store: TreeStore) -> bool:
            return (await store.history()).accepted

        if not with_store(source, usable):
            case.check(done)

    return replace(case, check=check, again=(*case.words[:4], "--abandon", "--yes"))


COMMANDS: dict[str, Command] = {
    "cluster init": init,
    "cluster backup": backup,
    "cluster restore": restored,
    "cluster accept-restore": accept,
    "cluster move-metadata": move,
    "cluster move-metadata --abandon": abandon,
}
