"""Whatever changes a hostile tenant asks for, nothing that another one reads changes, and it names nothing of that one.

Changes are made of pieces of honest ones: keys and values of both tenants, also with ids and uids exchanged, cut,
reordered and damaged, at the versions that are there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.conftest import EtcdBackend, MemoryBackend, ZooKeeperBackend
from tests.support.gate_kit import INTENT, Backend, Stream, World, rows
from tests.support.soak import drawn, soak

from buckram.core.ledgers.metadata_codec import parse, serialise
from buckram.core.security.ledger_claims import naming_key, uid_and_ids
from buckram.core.security.namespace_rules import ClusterKeys, uid_in
from buckram.core.security.write_limits import lasting_change
from buckram.core.streams.external.exports import Export, encode_export
from buckram.core.streams.metadata.head import Fork
from buckram.core.streams.names import owner_of
from buckram.errors import BuckramError
from buckram.metadata.service.packets import KeyRequest, RequestKind
from buckram.types import CheckVersion, Create, Delete, KeyOp, LedgerId, SetValue

MOST_BYTES = 512 * 1024
MARKS: Sequence[Mapping[str, Any]] = (
    {"deleting": True},
    {"fork": Fork("shop/x", "u", 0, False)},
    {"policy": {"colour": "red"}},
    {"policy": {"retention_s": 5.0}},
)


class Piece(NamedTuple):
    """One operation of a change, or a ledger's creation, by numbers that choose among what there is."""

    what: int
    key: int
    value: int
    mutation: int
    at: int


PIECES = st.builds(Piece, *(st.integers(0, 9999) for _ in Piece._fields))
CHANGES = st.lists(st.lists(PIECES, min_size=1, max_size=5), min_size=1, max_size=12)


class Game:
    """The keys and values that changes are made of."""

    def __init__(self, world: World, mine: Stream, theirs: Stream, loan: Sequence[str]) -> None:
        self.world, self.mine, self.theirs, self.loan = world, mine, theirs, loan
        self.given: list[LedgerId] = []
        self.victims: list[LedgerId] = []
        self.records: dict[str, bytes] = {}
        """Of ledgers, as they were created."""
        self.record_keys: dict[LedgerId, str] = {}

    @classmethod
    async def begin(cls, world: World, loan: Sequence[str]) -> Game:
        """`loan`: what mallory may do with the stream of alice."""
        world.grant("mallory", "shop/orders", *loan)
        theirs = await (await world.tenant("alice")).stream("shop/orders")
        mine = await (await world.tenant("mallory")).stream("mall/bait")
        game = cls(world, mine, theirs, loan)
        game.victims = [await theirs.make_listed(), await theirs.make_listed(), await theirs.make_ledger()]
        await theirs.tenant.keys.multi([theirs.page(*game.victims[:2])])
        await theirs.tenant.keys.create(f"{theirs.data}/cursors/c", b"{}")
        await theirs.tenant.keys.create(theirs.layout.lease(theirs.uid), b"alice", ephemeral=True)
        game.given = [await mine.make_listed(), await mine.make_ledger()]
        game.given += [await mine.tenant.store.allocate_ledger_id() for _ in range(3)]
        for ledger in (*game.victims, *game.given[:2]):
            key = await world.direct.ledgers.key(ledger)
            game.records[key] = (await world.direct.keys.get(key)).value
        game.record_keys = {ledger: await world.direct.ledgers.key(ledger) for ledger in game.ids}
        return game

    @property
    def ids(self) -> list[LedgerId]:
        return [*self.given, *self.victims, max(self.given) + 1000, 2**62]

    def keys(self) -> list[str]:
        found: list[str] = []
        for one in (self.mine, self.theirs):
            found += [one.head_key, one.data, f"{one.data}/cursors/c", one.layout.lease(one.uid)]
            found += [one.layout.page(one.uid, number) for number in range(2)]
            found += [f"{one.layout.exports(one.uid)}/x", one.layout.heads(one.name.namespace)]
            found += [one.layout.intent(one.uid, ledger) for ledger in self.ids]
            found += [f"{one.layout.shared(one.uid)}/{ledger:019d}" for ledger in self.ids]
        records = list(self.record_keys.values())
        shares = [f"{key}/{one.uid}" for key in records for one in (self.mine, self.theirs)]
        new = [f"{self.mine.head_key}-{number}" for number in range(3)]
        return [*found, *new, *new, self.mine.head_key, *records, *shares, *self.common()]

    def common(self) -> list[str]:
        """Keys of all tenants."""
        own, notes = self.world.direct.own, f"{self.world.direct.own}/healing"
        told = [f"{notes}/behind/{ledger:019d}@b" for ledger in self.ids] + [f"{notes}/degraded/b@m"]
        return [*told, f"{own}/history", f"{own}/streams/namespaces/mall/x", self.world.direct.root]

    def values(self) -> list[bytes]:
        found = [b"", b"{}", INTENT, bytes(300_000), *self.records.values()]
        for one in (self.mine, self.theirs):
            found += [str(one.name).encode(), one.head_value(), encode_export(Export("/x", 1, tuple(self.ids[:6])))]
            for ledger in self.ids:
                listed = rows([ledger])
                found += [one.head_value(tail=listed), one.head_value(garbage=(ledger,)), one.page(ledger).value]
                found += [one.head_value(table=listed[0]), serialise(one.record(birth=b"b" * 16))]
            found += [one.head_value(**marks) for marks in MARKS]
        return found

    def mutated(self, value: bytes, piece: Piece) -> bytes:
        mine, theirs = self.mine.uid.encode(), self.theirs.uid.encode()
        ids = self.ids
        old, new = (b"%d" % ids[number % len(ids)] for number in (piece.at, piece.at // 7))
        cut = piece.at % (len(value) + 1)
        changes: list[Callable[[], bytes]] = [
            lambda: value.replace(mine, theirs),
            lambda: value.replace(theirs, mine),
            lambda: value.replace(old + b",", new + b","),
            lambda: value.replace(b'"ledger"', b'"history"'),
            lambda: value[cut:] + value[:cut],
            lambda: value[:cut] + bytes((piece.at % 256,)) + value[cut + 1 :],
            lambda: value.replace(str(self.mine.name).encode(), str(self.theirs.name).encode()),
        ]
        number = piece.mutation % (3 * len(changes))  # most values stay whole
        return changes[number]() if number < len(changes) else value

    def nearly_honest(self, piece: Piece) -> tuple[str, bytes]:
        """A key of mallory's own stream, or of that which was lent to him, with a value of its kind, which may name a
        ledger that is not his."""
        one = self.theirs if self.loan and piece.value % 3 == 0 else self.mine
        ledger = self.ids[piece.at % len(self.ids)]
        listed, number = rows([ledger]), piece.value % 2
        pairs = [
            (f"{one.data}/cursors/c{piece.value % 5}", b"{}"),
            (one.layout.lease(one.uid), b"mallory"),
            (one.layout.intent(one.uid, ledger), INTENT),
            (f"{one.layout.shared(one.uid)}/{ledger:019d}", b""),
            (one.layout.page(one.uid, number), one.page(ledger, number=number).value),
            (f"{one.layout.exports(one.uid)}/x", encode_export(Export("/x", 1, (ledger,)))),
            (one.head_key, one.head_value()),
            (one.head_key, one.head_value(tail=listed)),
            (one.head_key, one.head_value(garbage=(ledger,))),
            (one.head_key, one.head_value(**MARKS[piece.at % len(MARKS)])),
            (one.data, b""),
            (
                f"{self.mine.head_key}-{piece.value % 3}",
                one.head_value().replace(one.uid.encode(), b"%06d" % piece.value),
            ),
        ]
        return pairs[piece.key % len(pairs)]

    async def op(self, piece: Piece) -> KeyOp:
        keys, values = self.keys(), self.values()
        key = keys[piece.key % len(keys)]
        value = self.mutated(values[piece.value % len(values)], piece)
        if piece.mutation % 3:
            key, value = self.nearly_honest(piece)
        kept = (await self.world.held([key]))[key]
        version = 0 if kept is None else kept[1]
        match piece.what % 8:
            case 0:
                return Delete(key, version)
            case 1:
                return CheckVersion(key, version)
            case 2 | 3 | 4 if kept is not None:
                return SetValue(key, value, version)
        return Create(key, value, ephemeral=piece.at % 11 == 0)

    async def play(self, pieces: list[Piece]) -> bool:
        """Ask for the change; whether it was made."""
        first = pieces[0]
        with suppress(BuckramError):
            if first.what % 5 == 0:
                values, ids = self.values(), self.ids
                value = self.mutated(values[first.value % len(values)], first)
                number = ids[first.key % len(ids)]
                request = KeyRequest(RequestKind.LEDGER_CREATE, number=number, watch=first.at % 2 == 0, value=value)
                await self.mine.tenant.store._service.tell(request)
                self.records[await self.world.direct.ledgers.key(number)] = value
            elif first.what % 5 == 1:
                keys = self.keys()
                kind = (
                    RequestKind.REMOVED,
                    RequestKind.REMOVED,
                    RequestKind.RAISE_NEXT_ID,
                    RequestKind.RECORDS,
                    RequestKind.STRAYS,
                )[first.value % 5]
                request = KeyRequest(kind, keys[first.key % len(keys)], number=first.at, limit=1 + first.at % 9)
                await self.mine.tenant.store._service.tell(request)
            else:
                await self.mine.tenant.keys.multi([await self.op(piece) for piece in pieces])
            return True
        return False

    async def of_alice(self) -> dict[str, tuple[bytes, int] | None]:
        """What there is of alice that was not lent, with what is beside it."""
        theirs, keys = self.theirs, self.world.direct.keys
        records = [self.record_keys[ledger] for ledger in self.victims]
        if "append" in self.loan:
            return {}
        found = [theirs.head_key, theirs.data, theirs.layout.lease(theirs.uid), *records]
        folders = ["pages", "intents", "exports", "shared", *([] if self.loan else ["cursors"])]
        for folder in folders:
            found += [f"{theirs.data}/{folder}/{name}" for name in await keys.children(f"{theirs.data}/{folder}")]
        for record in records:
            found += [f"{record}/{name}" for name in await keys.children(record)]
        return await self.world.held(found)

    async def check(self) -> None:
        """What mallory's keys name is mallory's, and what makes a ledger one is as it was."""
        direct = self.world.direct
        places = ClusterKeys(direct.root, direct.own, lambda key: direct.layout.ledger_of(key) is not None)
        names, uids = await self._all_keys(), list[str]()
        head = (await self.theirs.head())[0]
        assert None not in (await self.world.held([self.theirs.data])).values()
        assert (head.uid, head.deleting, head.incomplete) == (self.theirs.uid, False, False)
        assert not set(self.victims) - set(await direct.list_ledgers())
        for key in names:
            kept = (await self.world.held([key]))[key]
            if kept is None:
                continue
            assert len(kept[0]) <= MOST_BYTES
            at = naming_key(places, key)
            if places.head_of(key):
                uids.append(uid_in(key, kept[0]))
            if at is not None and at.uid != self.theirs.uid and key != self.theirs.head_key:
                _, ids = uid_and_ids(at, key, kept[0])
                assert not ids & set(self.victims), key
        assert len(set(uids)) == len(uids)
        for ledger in await direct.list_ledgers():
            key = await direct.ledgers.key(ledger)
            record = (await direct.keys.get(key)).value
            assert key in self.records, "a ledger under an id that nobody was given"
            assert lasting_change(parse(self.records[key]), parse(record)) == ""
            owner = owner_of(parse(record).custom_metadata)
            theirs = owner is not None and owner[0].startswith("shop/")
            assert not theirs or ledger in self.victims or "append" in self.loan

    async def _all_keys(self) -> list[str]:
        keys, streams = self.world.direct.keys, f"{self.world.direct.own}/streams"
        found: list[str] = []
        for space in await keys.children(f"{streams}/heads"):
            found += [f"{streams}/heads/{space}/{name}" for name in await keys.children(f"{streams}/heads/{space}")]
        for uid in await keys.children(f"{streams}/data"):
            for kind in await keys.children(f"{streams}/data/{uid}"):
                folder = f"{streams}/data/{uid}/{kind}"
                found += [folder, *(f"{folder}/{name}" for name in await keys.children(folder))]
        return found


LOANS = ((), ("read",), ("read", "append"))


async def played(changes: list[list[Piece]], loan: Sequence[str], backend: Backend | None = None) -> int:
    """Play a game, and check what is left; returns how many of the changes were made."""
    world = World(backend or MemoryBackend())
    await world.start()
    try:
        game = await Game.begin(world, loan)
        before = await game.of_alice()
        made = sum([await game.play(change) for change in changes])
        assert await game.of_alice() == before
        await game.check()
        return made
    finally:
        await world.close()


@given(CHANGES, st.sampled_from(LOANS))
@settings(max_examples=soak(2000, 60), deadline=None, suppress_health_check=list(HealthCheck))
def test_no_change_of_a_hostile_tenant_changes_what_another_reads(
    changes: list[list[Piece]], loan: Sequence[str]
) -> None:
    asyncio.run(played(changes, loan))


GAMES, LONG = soak(1000, 8), 100
"""In `make soak` 100,000 changes in games of so many: what one change left is there for all that come later."""


def drawn_game(seed: int, changes: int) -> list[list[Piece]]:
    """The same changes for the same seed: `played(drawn_game(seed, LONG), loan)` replays a game that failed."""
    rng = random.Random(seed)

    def piece() -> Piece:
        return Piece(*(rng.randrange(10_000) for _ in Piece._fields))

    return [[piece() for _ in range(rng.choice((1, 1, 2, 3, 5)))] for _ in range(changes)]


def play(seed: int, loan: Sequence[str], backend: Backend | None = None) -> int:
    try:
        return asyncio.run(played(drawn_game(seed, LONG), loan, backend))
    except AssertionError as error:
        error.add_note(f"replay: play({seed}, {loan})")
        raise


def test_nothing_comes_of_many_changes_one_after_the_other() -> None:
    rng = drawn("changes of a hostile tenant")
    taken = sum(play(rng.getrandbits(32), LOANS[game % len(LOANS)]) for game in range(GAMES))
    assert taken > GAMES * LONG // 40, "nearly all are refused: the game tries nothing"


SERVED = soak(60, 1)


@pytest.mark.parametrize("store", ["zookeeper", "etcd"])
def test_nor_on_stores_that_other_programs_serve(store: str, request: pytest.FixtureRequest) -> None:
    """In `make soak` 6,000 changes on each."""
    rng = drawn(f"changes of a hostile tenant on {store}")
    server = request.getfixturevalue(f"{store}_server")
    for game in range(SERVED):
        backend = ZooKeeperBackend(server) if store == "zookeeper" else EtcdBackend(server)
        loan = LOANS[game % len(LOANS)] if SERVED > 1 else rng.choice(LOANS)
        assert play(rng.getrandbits(32), loan, backend)
