"""Commands between two clusters: `replicate run`, `promote` and `reconcile`."""

from __future__ import annotations

from tests.kills.harness import Case, Ended
from tests.kills.world import Command, World, buckram

from buckram import sync
from buckram.errors import BuckramError

OLD = [b"record %d" % number for number in range(20)]
ONLY_THERE = [b"only there %d" % number for number in range(3)]
NEW = [b"new %d" % number for number in range(4)]


def write(client: sync.Client, space: str, values: list[bytes]) -> None:
    with client.namespace(space).writer("orders") as writer:
        writer.append_many(values)


def read(client: sync.Client, space: str, stream: str = "orders") -> list[bytes]:
    return [bytes(record.value) for record in client.namespace(space).read(stream)]


def make(world: World) -> str:
    """Make a namespace in both clusters, in the first one with a stream and objects."""
    space = world.name("mirror")
    for client in (world.client, world.other_client):
        client.namespaces.create(space, ensemble="1/1/1")
    write(world.client, space, OLD)
    with world.client.objects(space) as objects:
        objects.put("small", b"1")
        objects.put("large", b"2" * 1_200_000)
    return space


def run_words(world: World, space: str, *, back: bool = False) -> tuple[str, ...]:
    source, target = (world.other.uri, world.uri) if back else (world.uri, world.other.uri)
    return ("replicate", "run", "--from", source, "--to", target, space, "--once", "--json")


def objects_of(client: sync.Client, space: str) -> dict[str, bytes]:
    with client.objects(space) as objects:
        return {name: bytes(objects.get(name)) for name in ("small", "large")}


def run(world: World) -> Case:
    space = make(world)

    def check(_: Ended) -> None:
        assert read(world.other_client, space) == OLD
        assert objects_of(world.other_client, space) == objects_of(world.client, space)

    return Case(run_words(world, space), world.new_folder(), check)


def promote(world: World) -> Case:
    """The other side is fenced, and it is told what was not copied, whenever the promotion died."""
    space = make(world)
    buckram(*run_words(world, space))
    write(world.client, space, ONLY_THERE)

    def check(done: Ended) -> None:
        (told,) = done.json["streams"]
        assert (told["stream"], told["copied"], told["missing"]) == (f"{space}/orders", 20, 3)
        write(world.other_client, space, NEW)
        assert read(world.other_client, space) == [*OLD, *NEW]
        try:
            write(world.client, space, [b"late"])
        except BuckramError:
            return
        raise AssertionError("the side that was left takes records")

    words = ("replicate", "promote", space, "--on", world.other.uri, "--other", world.uri, "--force", "--yes", "--json")
    return Case(words, world.new_folder(), check)


def reconcile(world: World) -> Case:
    """What only the old side has is kept aside, once."""
    space = make(world)
    buckram(*run_words(world, space))
    write(world.client, space, ONLY_THERE)
    buckram("replicate", "promote", space, "--on", world.other.uri, "--other", world.uri, "--force", "--yes")
    write(world.other_client, space, NEW)

    def check(_: Ended) -> None:
        buckram(*run_words(world, space, back=True))
        assert read(world.client, space) == [*OLD, *NEW]
        assert read(world.client, space, "orders.kept-1") == ONLY_THERE

    words = ("replicate", "reconcile", space, "--on", world.uri, "--other", world.other.uri, "--yes", "--json")
    return Case(words, world.new_folder(), check)


COMMANDS: dict[str, Command] = {"replicate run": run, "replicate promote": promote, "replicate reconcile": reconcile}
