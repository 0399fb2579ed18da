"""Who is who over time: every combination of what a bookie knows and what the store says, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buckram.core.cluster.incarnations import Standing, decide, next_generation, why_removed, why_replaced
from buckram.core.cluster.store_history import Judgement, WitnessStatement, encode_statement, parse_statement

MINE = WitnessStatement("mine", 4, 17, 4096, 3, "third", "n1", 2, 0)
OTHER = replace(MINE, incarnation="other")
TRUSTED, ADOPTED, BEHIND = Judgement(), Judgement(adopt=True), Judgement("it went back")
MEMBER, RETURNING, REPLACED, REMOVED = Standing.MEMBER, Standing.RETURNING, Standing.REPLACED, Standing.REMOVED


def other(generation: int, epoch: int = 3) -> WitnessStatement:
    return replace(OTHER, generation=generation, epoch=epoch)


@pytest.mark.parametrize(("known", "found", "past", "has_cookie", "restored", "standing", "suspicion"), [
    # The id is its own, or nobody's.
    (MINE, MINE, TRUSTED, True, False, MEMBER, ""),
    (None, MINE, TRUSTED, True, False, MEMBER, ""),
    (None, None, TRUSTED, True, False, MEMBER, ""),
    (MINE, None, BEHIND, True, False, MEMBER, "went back"),
    (MINE, replace(MINE, generation=9), TRUSTED, True, False, MEMBER, ""),
    # A later incarnation has it, whatever else is wrong with the store.
    (MINE, other(3), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(3), ADOPTED, True, False, REPLACED, ""),
    (MINE, other(3), BEHIND, True, False, REPLACED, ""),
    (MINE, other(3), BEHIND, False, True, REPLACED, ""),
    (MINE, other(3), TRUSTED, False, False, REPLACED, ""),
    (None, other(1), TRUSTED, True, False, REPLACED, ""),
    # One of earlier releases, without a generation: who wrote last has the id.
    (replace(MINE, generation=0), other(0), TRUSTED, True, False, REPLACED, ""),
    (None, other(0), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(0), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(0), BEHIND, True, False, MEMBER, "went back"),
    (MINE, other(0), ADOPTED, True, False, MEMBER, ""),
    # Two claims are equal: the store decides, if it is believed.
    (MINE, other(2), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(2), BEHIND, True, False, MEMBER, "went back"),
    # An earlier one has it: the store went back. Where an operator accepted that, the later one takes the id again,
    (MINE, other(1), TRUSTED, True, False, MEMBER, "generation 1"),
    (MINE, other(1), BEHIND, True, False, MEMBER, "went back"),
    (MINE, other(1), ADOPTED, True, False, MEMBER, ""),
    # unless the earlier one was let in after that.
    (MINE, other(1, epoch=4), ADOPTED, True, False, REPLACED, ""),
    # No cookie: it was taken out, unless a restore lost the cookie, or the store is not believed.
    (MINE, MINE, TRUSTED, False, False, REMOVED, ""),
    (MINE, MINE, ADOPTED, False, False, REMOVED, ""),
    (None, None, TRUSTED, False, False, REMOVED, ""),
    (MINE, MINE, BEHIND, False, False, MEMBER, "went back"),
    (MINE, None, BEHIND, False, True, RETURNING, "went back"),
    (MINE, other(1), BEHIND, False, True, RETURNING, "went back"),
])  # fmt: skip
def test_who_it_is(
    known: WitnessStatement | None,
    found: WitnessStatement | None,
    past: Judgement,
    has_cookie: bool,
    restored: bool,
    standing: Standing,
    suspicion: str,
) -> None:
    verdict = decide("mine", known, found, past, has_cookie=has_cookie, restored=restored)
    assert verdict.standing is standing
    assert suspicion in verdict.suspicion
    assert bool(suspicion) == bool(verdict.suspicion)
    assert verdict.out is (standing in (REPLACED, REMOVED))


@pytest.mark.parametrize(("known", "found", "generation"), [
    (None, None, 1),
    (None, other(0), 1),
    (None, other(4), 5),
    (MINE, MINE, 2),
    (MINE, None, 2),
    (replace(MINE, generation=0), replace(MINE, generation=0), 1),
    (MINE, replace(MINE, generation=3), 3),
    (MINE, other(1), 3),
])  # fmt: skip
def test_the_generation_grows_with_each_take_over(
    known: WitnessStatement | None, found: WitnessStatement | None, generation: int
) -> None:
    assert next_generation("mine", known, found) == generation


def test_keys_of_earlier_releases_have_no_generation() -> None:
    record = b'{"incarnation": "i", "starts": 1, "seq": 2, "offset": 3, "epoch": 1, "restore": "r", "nonce": "n"}'
    assert parse_statement("key", record) == WitnessStatement("i", 1, 2, 3, 1, "r", "n", 0, 0)
    assert parse_statement("key", encode_statement(MINE)) == MINE


def test_words_name_both_incarnations_when_and_what_to_do() -> None:
    text = why_replaced("b1", "mine", replace(other(3), since=86_400))
    for part in (
        "b1",
        "mine",
        "other",
        "generation 3",
        "1970-01-02 00:00:00 UTC",
        "--id NEW-ID",
        "buckram bookie rejoin",
    ):
        assert part in text
    assert " at 19" not in why_replaced("b1", "mine", other(3))
    for part in ("b1", "mine", "decommission", "accept-restore", "--id NEW-ID"):
        assert part in why_removed("b1", "mine")
