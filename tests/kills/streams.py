"""Commands that make streams of other streams and of files, or move their records."""

from __future__ import annotations

from tests.kills.harness import Case, Ended
from tests.kills.world import Command, World

VALUES = [b"record %d" % number for number in range(30)]


def make(world: World, space: str, parts: int = 3) -> None:
    """A namespace with a stream of some segments."""
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


COMMANDS: dict[str, Command] = {"stream fork": fork}
