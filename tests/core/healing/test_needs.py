"""What a ledger lacks is told from its record alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.healing.needs import Missing, fewest_left, needs_of, urgency
from buckram.core.ledgers.metadata import closed, created, ensemble_changed
from buckram.core.ledgers.quorum import Quorum
from buckram.types import LedgerMetadata


def ledger(quorum: str, members: list[str], *, last: int | None = None) -> LedgerMetadata:
    size = Quorum.parse(quorum)
    made = created(size.ensemble_size, size.write_quorum, size.ack_quorum, members)
    return made if last is None else closed(made, last, 100 * (last + 1))


def test_a_ledger_whose_bookies_are_there_lacks_nothing() -> None:
    needs = needs_of(7, ledger("3/3/2", ["a", "b", "c"], last=9), {"x"})
    assert needs.healthy
    assert not needs.open_tail
    assert needs.survivors == 3


def test_each_fragment_lacks_its_own_members() -> None:
    record = ledger("3/3/2", ["a", "b", "c"])
    record = ensemble_changed(record, 10, ["a", "b", "d"])
    record = closed(record, 19, 2000)
    needs = needs_of(7, record, {"c", "a"})
    assert needs.missing == (Missing(0, "a", 0, 9), Missing(2, "c", 0, 9), Missing(0, "a", 10, 19))
    assert needs.survivors == 1
    assert needs.closed_part == needs.missing


def test_the_last_fragment_of_an_open_ledger_has_to_wait() -> None:
    record = ensemble_changed(ledger("3/3/2", ["a", "b", "c"]), 10, ["a", "b", "d"])
    needs = needs_of(7, record, {"b"})
    assert needs.missing == (Missing(1, "b", 0, 9), Missing(1, "b", 10, None))
    assert needs.open_tail
    assert needs.closed_part == (Missing(1, "b", 0, 9),)


def test_an_empty_last_fragment_needs_another_member_but_endangers_nothing() -> None:
    record = closed(ensemble_changed(ledger("3/3/2", ["a", "b", "c"]), 10, ["a", "b", "d"]), 9, 1000)
    needs = needs_of(7, record, {"d"})
    assert needs.missing == (Missing(2, "d", 10, 9),)
    assert needs.survivors == 3


def test_under_striping_only_entries_that_exist_count() -> None:
    record = ledger("4/2/2", ["a", "b", "c", "d"], last=0)
    assert needs_of(7, record, {"c", "d"}).survivors == 2, "entry 0 is on a and b"
    assert needs_of(7, record, {"a", "b"}).survivors == 0


def test_ledgers_with_fewer_copies_come_first_then_those_of_lower_ids() -> None:
    one = needs_of(9, ledger("3/3/2", ["a", "b", "c"], last=9), {"a", "b"})
    two = needs_of(1, ledger("3/3/2", ["a", "b", "c"], last=9), {"a"})
    late = needs_of(10, ledger("3/3/2", ["a", "b", "c"], last=9), {"a", "b"})
    assert sorted([late, two, one], key=urgency) == [one, late, two]


@given(st.integers(0, 2**32))
def test_survivors_are_the_fewest_copies_of_any_entry(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 5)
    width = rng.randint(1, size)
    members = [f"b{i}" for i in range(size)]
    last = rng.randint(0, 12)
    record = ledger(f"{size}/{width}/{rng.randint(1, width)}", members, last=last)
    gone = {member for member in members if rng.random() < 0.4}
    quorum = Quorum(size, width, 1)
    copies = [sum(members[p] not in gone for p in quorum.write_set(entry)) for entry in range(last + 1)]
    needs = needs_of(1, record, gone)
    assert needs.survivors == min(copies)
    assert needs.healthy is not bool(gone)


@pytest.mark.parametrize("state", [None, 5])
def test_the_order_of_the_set_of_gone_bookies_does_not_matter(state: int | None) -> None:
    record = ledger("3/3/2", ["a", "b", "c"], last=state)
    assert needs_of(1, record, ["a", "c"]) == needs_of(1, record, {"c", "a"})


def test_the_fewest_copies_without_a_bookie_are_counted_where_it_has_some() -> None:
    record = closed(ensemble_changed(ledger("3/3/2", ["a", "b", "c"]), 10, ["a", "b", "d"]), 19, 2000)
    assert fewest_left(record, "c", {"a", "b", "d"}) == 2
    assert fewest_left(record, "c", {"a", "d"}) == 1
    assert fewest_left(record, "x", {"a", "b", "c", "d"}) is None


def test_an_empty_last_fragment_places_nothing_and_an_open_one_may() -> None:
    record = ensemble_changed(ledger("3/3/2", ["a", "b", "c"]), 10, ["a", "b", "d"])
    assert fewest_left(closed(record, 9, 1000), "d", {"a"}) is None
    assert fewest_left(record, "d", {"a"}) == 1


def test_in_a_striped_fragment_only_the_write_sets_of_the_bookie_count() -> None:
    record = ledger("4/2/2", ["a", "b", "c", "d"], last=99)
    assert fewest_left(record, "a", {"b", "d"}) == 1
    assert fewest_left(record, "a", {"c"}) == 0
    assert fewest_left(ledger("4/2/2", ["a", "b", "c", "d"], last=0), "c", {"a", "b", "d"}) is None
