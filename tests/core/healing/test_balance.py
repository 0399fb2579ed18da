"""Which places move so that bookies are about equally full."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from buckram.core.healing.balance import Balance, BookieSpace
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.judge import breaches
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.placement.topology import Topology, parse_lines
from buckram.types import BookieId, DigestType, Fragment, LedgerMetadata, LedgerState

TERABYTE = 1 << 40
ANY = PlacementPolicy.parse("any")


def closed(*ensembles: tuple[str, ...], entries: int = 100, size: int = 1000) -> LedgerMetadata:
    """A closed ledger whose fragments have so many entries of so many bytes each."""
    return LedgerMetadata(
        ensemble_size=len(ensembles[0]),
        write_quorum=2,
        ack_quorum=2,
        state=LedgerState.CLOSED,
        fragments=tuple(Fragment(index * entries, ensemble) for index, ensemble in enumerate(ensembles)),
        last_entry=len(ensembles) * entries - 1,
        length=len(ensembles) * entries * size,
        digest_type=DigestType.CRC32C,
        password=b"",
    )


def balance(spaces: dict[str, BookieSpace], ledgers: list[LedgerMetadata], policy: PlacementPolicy = ANY) -> Balance:
    found = Balance(spaces, Topology(), 0.1)
    for ledger, metadata in enumerate(ledgers):
        found.add(ledger, metadata, policy)
    return found


def equal(*names: str) -> dict[str, BookieSpace]:
    return dict.fromkeys(names, BookieSpace(TERABYTE, TERABYTE))


def test_an_empty_bookie_gets_its_share() -> None:
    found = balance(equal("a", "b", "c"), [closed(("a", "b")) for _ in range(30)])
    assert found.held == {"a": 3_000_000, "b": 3_000_000, "c": 0}
    moves = found.moves()
    assert len(moves) in range(17, 21)
    assert {move.target for move in moves} == {"c"}
    assert found.even
    assert sum(found.held.values()) == 6_000_000


def test_a_larger_disk_gets_more() -> None:
    spaces = {
        "a": BookieSpace(TERABYTE, TERABYTE),
        "b": BookieSpace(TERABYTE, TERABYTE),
        "c": BookieSpace(TERABYTE, 2 * TERABYTE),
    }
    found = balance(spaces, [closed(("a", "b")) for _ in range(40)])
    found.moves()
    assert found.even
    assert found.held["c"] > 1.5 * found.held["a"]


def test_what_is_even_stays() -> None:
    found = balance(equal("a", "b"), [closed(("a", "b"))])
    assert found.even
    assert found.moves() == []


def test_a_bookie_that_takes_nothing_is_only_emptied() -> None:
    spaces = equal("a", "b", "c") | {"c": BookieSpace(TERABYTE, TERABYTE, taker=False)}
    assert balance(spaces, [closed(("a", "b")) for _ in range(9)]).moves() == []
    moves = balance(spaces | {"d": BookieSpace(TERABYTE, TERABYTE)}, [closed(("a", "c")) for _ in range(9)]).moves()
    assert {move.target for move in moves} <= {"b", "d"}
    assert {move.source for move in moves} == {"a", "c"}


def test_no_target_gets_more_than_it_has_room_for() -> None:
    spaces = equal("a", "b") | {"c": BookieSpace(250_000, TERABYTE)}
    moves = balance(spaces, [closed(("a", "b")) for _ in range(30)]).moves()
    assert sum(move.bytes for move in moves if move.target == "c") == 200_000


def test_of_open_ledgers_and_of_bookies_that_are_away_nothing_moves() -> None:
    still_open = LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        state=LedgerState.OPEN,
        fragments=(Fragment(0, ("a", "b")),),
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    found = balance(equal("a", "b", "c"), [still_open, *(closed(("a", "away")) for _ in range(9))])
    assert found.held == {"a": 900_000, "b": 0, "c": 0}
    assert found.moves() == []


def test_a_placement_never_gets_worse() -> None:
    topology = parse_lines(["a /r1", "b /r2", "c /r1", "d /r2"], "racks", "abcd").topology()
    policy = PlacementPolicy.parse("rack:2")
    found = Balance(equal("a", "b", "c", "d"), topology, 0.1)
    for ledger in range(40):
        found.add(ledger, closed(("a", "b")), policy)
    moves = found.moves()
    assert found.even
    for move in moves:
        assert topology.domain(move.source, "rack") == topology.domain(move.target, "rack")


@given(st.integers(0, 10_000))
def test_moves_end_even_out_and_keep_copies_apart(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"b{n}" for n in range(rng.randint(3, 7))]
    ledgers = [
        closed(
            *(tuple(rng.sample(names[: rng.randint(3, len(names))], 2)) for _ in range(rng.randint(1, 3))),
            entries=rng.randint(1, 50),
            size=rng.randint(1, 2000),
        )
        for _ in range(rng.randint(1, 30))
    ]
    found = balance(equal(*names), ledgers)
    before = dict(found.held)
    now: dict[tuple[int, int], list[BookieId]] = {
        (ledger, fragment.first_entry): list(fragment.ensemble)
        for ledger, metadata in enumerate(ledgers)
        for fragment in metadata.fragments
    }
    for _ in range(5):  # each plan is made from the records that the one before has left
        moves = found.moves()
        for move in moves:
            ensemble = now[move.ledger, move.first]
            ensemble[ensemble.index(move.source)] = move.target
            assert len(set(ensemble)) == len(ensemble)
            assert not breaches(ensemble, Quorum(2, 2, 2), ANY, Topology())
        assert sum(found.held.values()) == sum(before.values())
        assert max(found.held.values()) <= max(before.values())
        if not moves:
            return
        after = [
            replace(
                metadata, fragments=tuple(replace(f, ensemble=tuple(now[n, f.first_entry])) for f in metadata.fragments)
            )
            for n, metadata in enumerate(ledgers)
        ]
        held, found = found.held, balance(equal(*names), after)
        assert found.held == held
    raise AssertionError("it does not end")
