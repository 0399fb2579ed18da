"""What may be done to streams of each purpose: every cell of the table, and who says what a stream is for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from buckram.core.streams.metadata.changes import claimed, configured, deleted
from buckram.core.streams.metadata.head import Head, WriterInfo, decode_head, encode_head
from buckram.core.streams.metadata.purposes import (
    Act,
    Purpose,
    change_refusal,
    check_act,
    purpose_named,
    purpose_of,
    refusal,
)
from buckram.errors import InvalidArgument, MachineLog, StreamPurpose

RECORDS = Head("a" * 16, 1)
LOG = replace(RECORDS, snapshots=())
HEADS: Mapping[Purpose, tuple[str, Head]] = {
    Purpose.RECORDS: ("shop/orders", RECORDS),
    Purpose.MACHINE: ("shop/inventory", LOG),
    Purpose.DATABASE: ("shop/main", replace(LOG, properties={"buckram": "database", "cdc": "on"})),
    Purpose.OBJECTS: ("shop/buckram.objects", LOG),
    Purpose.AUDIT: ("system/audit", RECORDS),
    Purpose.USAGE: ("system/usage", RECORDS),
}
ALLOWED: Mapping[Purpose, set[Act]] = {
    Purpose.RECORDS: set(Act),
    Purpose.MACHINE: {Act.POLICY, Act.PROPERTIES},
    Purpose.DATABASE: {Act.POLICY, Act.PROPERTIES},
    Purpose.OBJECTS: {Act.POLICY},
    Purpose.AUDIT: {Act.FORK, Act.COMPACT, Act.OFFLOAD, Act.EXPORT, Act.POLICY, Act.PROPERTIES},
    Purpose.USAGE: set(Act) - {Act.WRITE, Act.SCHEMA},
}
CELLS = list(itertools.product(Purpose, Act))


def test_every_cell_of_the_table_has_its_decision() -> None:
    assert {(p, a) for p, a in CELLS if not refusal(HEADS[p][0], p, a)} == {(p, a) for p in Purpose for a in ALLOWED[p]}
    for purpose, act in CELLS:
        name, head = HEADS[purpose]
        assert refusal(name, purpose, act, purpose) == "", "its owner may"
        if act in ALLOWED[purpose]:
            check_act(name, head, act)
        else:
            with pytest.raises(StreamPurpose, match="which nobody may"):
                check_act(name, head, act)


@pytest.mark.parametrize(("purpose", "command"), [
    (Purpose.MACHINE, "buckram stream delete shop/inventory --purpose machine"),
    (Purpose.DATABASE, "buckram db drop shop/main"),
    (Purpose.OBJECTS, "buckram object delete --recursive"),
    (Purpose.AUDIT, "buckram stream set system/audit --set retention_s=90d"),
])  # fmt: skip
def test_a_refused_deletion_names_the_command_that_is_right(purpose: Purpose, command: str) -> None:
    name, head = HEADS[purpose]
    with pytest.raises(StreamPurpose, match=command) as raised:
        deleted(name, head)
    assert isinstance(raised.value, MachineLog) == (head.snapshots is not None)


def test_the_head_says_what_a_stream_is_for() -> None:
    assert {one: purpose_of(*HEADS[one]) for one in Purpose} == {one: one for one in Purpose}
    assert purpose_of("other/audit", RECORDS) is Purpose.RECORDS
    assert purpose_of("shop/buckram.objects", RECORDS) is Purpose.RECORDS
    assert purpose_of("shop/x", replace(RECORDS, properties={"buckram": "database"})) is Purpose.RECORDS


@pytest.mark.parametrize(("said", "of"), [(s, o) for s, o in itertools.product(Purpose, Purpose) if s is not o])
def test_who_says_another_purpose_is_refused(said: Purpose, of: Purpose) -> None:
    name, head = HEADS[of]
    if said is Purpose.RECORDS:
        return
    with pytest.raises(StreamPurpose, match=f"its purpose is {of.value}, not {said.value}"):
        deleted(name, head, said)


def test_words_of_purposes() -> None:
    assert [purpose_named(one.value) for one in Purpose] == list(Purpose)
    with pytest.raises(InvalidArgument, match="'table': needs one of records, machine, database"):
        purpose_named("table")


@pytest.mark.parametrize("purpose", Purpose)
def test_a_deletion_says_in_the_head_for_whom_and_is_completed_by_anybody(purpose: Purpose) -> None:
    name, head = HEADS[purpose]
    step = deleted(name, head, purpose)
    assert step is not None
    begun = decode_head("x", encode_head(step.head))
    assert (begun, begun.deleted_for) == (step.head, "" if purpose is Purpose.RECORDS else purpose.value)
    assert deleted(name, begun) is None
    assert change_refusal(name, head, begun) == ""
    assert change_refusal(name, begun, None) == "", "the last step of a deletion"


@pytest.mark.parametrize("purpose", [Purpose.MACHINE, Purpose.DATABASE, Purpose.OBJECTS, Purpose.AUDIT])
def test_the_metadata_refuses_a_deletion_that_does_not_say_for_whom(purpose: Purpose) -> None:
    name, head = HEADS[purpose]
    for after in (None, replace(head, deleting=True), replace(head, deleting=True, deleted_for="usage")):
        assert "which nobody may delete" in change_refusal(name, head, after)
    assert change_refusal(name, head, replace(head, epoch=5)) == ""


def test_a_head_that_makes_records_of_a_log_is_refused() -> None:
    name, head = HEADS[Purpose.DATABASE]
    assert "stays it" in change_refusal(name, head, replace(head, snapshots=None, deleting=True))
    assert "stays it" in change_refusal(name, head, replace(head, properties={}))


def test_only_its_owner_claims_a_stream_that_is_not_for_records() -> None:
    name, head = HEADS[Purpose.DATABASE]
    me = WriterInfo("me", "1", 1)
    with pytest.raises(MachineLog, match="execute SQL"):
        claimed(name, head, me)
    step = claimed(name, head, me, acting_for=Purpose.DATABASE)
    assert step is not None
    assert step.head.writer == me


def test_properties_that_say_what_a_log_is_never_change() -> None:
    name, head = HEADS[Purpose.DATABASE]
    for properties in ({}, {"buckram": "database"}, {**head.properties, "cdc": "off"}):
        with pytest.raises(MachineLog, match="never changes"):
            configured(name, head, None, properties)
    assert configured(name, head, None, {**head.properties, "owner": "billing"}) is not None
    with pytest.raises(MachineLog, match="'buckram' says what it is"):
        configured(*HEADS[Purpose.MACHINE], None, {"buckram": "database"})
    assert configured(*HEADS[Purpose.RECORDS], None, {"buckram": "database"}) is not None
