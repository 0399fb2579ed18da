"""What a bookie remembers of a metadata store against what the store says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buckram.core.cluster.store_history import (
    Confirmed,
    Contradiction,
    Memory,
    WitnessStatement,
    encode_history,
    encode_memory,
    encode_statement,
    judge,
    learn,
    parse_history,
    parse_memory,
    parse_statement,
)
from buckram.errors import MalformedRecord
from buckram.types import History

NOW = History(3, "third")
SAID = WitnessStatement("inc", 4, 17, 4096, 3, "third", "n1")
TOLD = Confirmed(9, SAID)
MEMORY = Memory(NOW, 3, TOLD, "word", "third")


def test_the_same_store_is_believed() -> None:
    assert judge(MEMORY, NOW, TOLD) == judge(Memory(), History(), None)
    assert not judge(MEMORY, NOW, TOLD).why


def test_a_change_whose_answer_was_lost_is_no_alarm() -> None:
    assert not judge(MEMORY, NOW, Confirmed(10, replace(SAID, nonce="n2"))).why


@pytest.mark.parametrize(("history", "found", "why"), [
    (NOW, Confirmed(8, SAID), "at version 8, it was at 9"),
    (NOW, Confirmed(9, replace(SAID, nonce="n2")), "something else at version 9"),
    (NOW, None, "missing, it was at version 9"),
    (History(2, "second"), TOLD, "epoch is 2, and 3 was seen"),
    (History(), TOLD, "epoch is 0, and 3 was seen"),
    (History(3, "other"), TOLD, "began with restore 'other'"),
    (History(4, "third"), TOLD, "restore id is still 'third'"),
    (History(4, "fourth", accepted=False), TOLD, "no operator has accepted"),
])  # fmt: skip
def test_a_store_that_went_back(history: History, found: Confirmed | None, why: str) -> None:
    verdict = judge(MEMORY, history, found)
    assert why in verdict.why
    assert not verdict.adopt


def test_an_accepted_restore_begins_anew_whatever_the_key_says() -> None:
    for found in (None, Confirmed(2, SAID), TOLD):
        verdict = judge(MEMORY, History(4, "fourth"), found)
        assert verdict.adopt
        assert not verdict.why


def test_an_epoch_reported_by_clients_counts_against_the_store() -> None:
    heard = replace(MEMORY, heard=5)
    assert "5 was seen" in judge(heard, NOW, TOLD).why
    assert "5 was seen" in judge(heard, History(4, "fourth"), TOLD).why
    assert judge(heard, History(5, "fifth"), None).adopt


def test_a_contradiction_counts_until_another_history_begins() -> None:
    told = replace(MEMORY, contradiction=Contradiction(7, b"b" * 16, "it does not know ledger 7"))
    assert judge(told, NOW, TOLD).why == "it does not know ledger 7"
    after = learn(told, History(4, "fourth"), TOLD, highest=9)
    assert (after.contradiction, after.settled) == (None, 9)
    assert learn(told, NOW, TOLD).contradiction == told.contradiction


def test_the_first_history_needs_no_review_and_an_accepted_restore_does() -> None:
    first = learn(Memory(), NOW, TOLD)
    assert first.reviewed == "third"
    assert learn(first, History(4, "fourth"), TOLD).reviewed == "third"


def test_records_are_read_as_they_were_written() -> None:
    assert parse_memory("WITNESS", encode_memory(MEMORY)) == MEMORY
    assert parse_memory("WITNESS", encode_memory(Memory())) == Memory()
    contradicted = replace(MEMORY, contradiction=Contradiction(7, b"\x00\xff" * 8, "it does not know ledger 7"))
    assert parse_memory("WITNESS", encode_memory(contradicted)) == contradicted
    assert parse_statement("/k", encode_statement(SAID)) == SAID
    for history in (NOW, History(1, "a", accepted=False)):
        assert parse_history("/k", encode_history(history)) == history


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b"{}",
        b'{"epoch": -1, "restore": ""}',
        b'{"epoch": 1}',
        b'{"epoch": true, "restore": ""}',
        b"\xff",
    ],
)
def test_what_is_no_record_is_refused(record: bytes) -> None:
    for parse in (parse_history, parse_statement, parse_memory):
        with pytest.raises(MalformedRecord, match="WITNESS"):
            parse("WITNESS", record)
