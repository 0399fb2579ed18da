"""Commands that make streams of other streams and of files, or move their records: `fork`, `import` and `offload`."""

from __future__ import annotations

import asyncio
import json

from tests.kills.harness import Case, Ended
from tests.kills.world import Command, World, buckram

from buckram.streams.maintain.history.table import table_copies

VALUES = [b"record %d" % number for number in range(30)]


def make(world: World, space: str, parts: int = 3) -> None:
    """Make a namespace with a stream of some segments."""
    world.client.namespaces.create(space, ensemble="3/3/2")
    each = len(VALUES) // parts
    for part in range(parts):
        with world.client.namespace(space).writer("source") as writer:
            writer.append_many(VALUES[part * each : (part + 1) * each])


def values(world: World, space: str, stream: str) -> list[bytes]:
    return [bytes(record.value) for record in world.client.namespace(space).read(stream)]


def fork(world: World) -> Case:
    space = world.name("fork")
    make(world, space)

    def kept() -> None:
        assert values(world, space, "source") == VALUES

    def check(_: Ended) -> None:
        kept()
        assert values(world, space, "copy") == VALUES[:25]

    words = ("stream", "fork", f"{space}/source", f"{space}/copy", "--at", "25", "--metadata", world.uri, "--json")
    return Case(words, world.new_folder(), check, kept)


def offload(world: World) -> Case:
    """The records are in the stream at any time; in the end nothing is beside the files that it names."""
    space, folder = world.name("offload"), world.new_folder()
    make(world, space)
    namespace = world.client.namespace(space)

    def kept() -> None:
        assert values(world, space, "source") == VALUES

    def check(_: Ended) -> None:
        kept()
        rows = [row for row in namespace.segments("source") if row.kind == "history"]
        assert rows[0].offloaded is not None
        in_table = asyncio.run(table_copies(rows[0].offloaded.location))
        assert in_table == {row.ledger for row in rows}, "the table names other files than the stream"
        buckram("stream", "janitor", "--grace", "0s", "--no-orphans", "--metadata", world.uri)
        kept()
        with namespace.writer("source") as writer:
            writer.append(b"more")
        assert values(world, space, "source") == [*VALUES, b"more"]

    words = ("stream", "offload", f"{space}/source", "--to", f"{folder}/history", "--metadata", world.uri, "--json")
    return Case(words, folder, check, kept)


def import_(world: World) -> Case:
    """Each row of some files is imported once, in the files' order."""
    space, folder = world.name("import"), world.new_folder()
    source = folder.with_suffix(".rows")
    source.mkdir()
    world.client.namespaces.create(space, ensemble="3/3/2")
    rows = [f"row {number}" for number in range(60)]
    for part in range(3):
        lines = [json.dumps({"value": row}) + "\n" for row in rows[part * 20 : (part + 1) * 20]]
        (source / f"{part}.jsonl").write_text("".join(lines))

    def check(_: Ended) -> None:
        assert [value.decode() for value in values(world, space, "rows")] == rows

    words = (
        "stream", "import", f"{space}/rows", "--from", str(source), "--format", "jsonl", "--value", "value",
        "--metadata", world.uri, "--json",
    )  # fmt: skip
    return Case(words, folder, check)


COMMANDS: dict[str, Command] = {"stream fork": fork, "stream offload": offload, "stream import": import_}
