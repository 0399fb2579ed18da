"""Bugs of the gate before streams that are not for records, and of the fence before what a replaced side creates."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited, plant

from buckram.core.streams.metadata import purposes
from buckram.core.streams.metadata.purposes import Act, Purpose

_PURE = "tests/core/streams/metadata/test_purposes.py::"
_DOORS = "tests/streams/test_purposes.py::"
_EVERY_DOOR = (f"{_DOORS}test_every_door_refuses_what_would_take_more_along_than_a_stream",)
_BOOKIE = (f"{_DOORS}test_a_bookie_refuses_to_delete_the_head_of_a_log_as_a_stream[Purpose.DATABASE]",)
_CREATION = "tests/contracts/test_stream_creation.py::"
_OF_OBJECTS = {**purposes._TABLE[Purpose.OBJECTS], Act.DELETE: ""}

MUTANTS = (
    TestMutant(
        "purpose-one-wrong-cell",
        "the index of all objects may be deleted as a stream",
        plant((purposes, "_TABLE", {**purposes._TABLE, Purpose.OBJECTS: _OF_OBJECTS})),
        (f"{_PURE}test_every_cell_of_the_table_has_its_decision",),
    ),
    TestMutant(
        "purpose-deletion-does-not-ask",
        "deleting a stream does not ask what it is for",
        edited(
            ("buckram.core.streams.metadata.changes:deleted", "check_act(name, head, Act.DELETE, acting_for)", "pass")
        ),
        _EVERY_DOOR,
    ),
    TestMutant(
        "purpose-compaction-does-not-ask",
        "a job compacts the log of a machine",
        edited(
            (
                "buckram.streams.maintain.compaction:plan_compaction",
                "check_act(str(name), head, Act.COMPACT)",
                "pass",
            )
        ),
        _EVERY_DOOR,
    ),
    TestMutant(
        "purpose-schema-does-not-ask",
        "the log of a database gets a schema",
        edited(
            ("buckram.streams.namespace:StreamNamespace.set_schema", "check_act(str(name), head, Act.SCHEMA)", "pass")
        ),
        _EVERY_DOOR,
    ),
    TestMutant(
        "purpose-bookie-does-not-ask",
        "a bookie deletes the head of a database's log for any client",
        edited(
            (
                "buckram.bookie.service.metadata.key_session:KeySession._change",
                "await self._check_purpose(op, present.get(op.key))",
                "pass",
            )
        ),
        _BOOKIE,
    ),
    TestMutant(
        "purpose-bookie-too-prompt",
        "a bookie begins the deletion of a stream at once, without a look at what the stream is for",
        edited(
            (
                "buckram.bookie.service.metadata.key_session:KeySession._needs_a_look",
                "self._deletes_stream(op) or ",
                "",
            )
        ),
        _BOOKIE,
    ),
    TestMutant(
        "creation-without-the-link",
        "a side that was replaced creates streams",
        edited(("buckram.core.streams.replication_links:check_creation", "if link.state == SUPERSEDED:", "if False:")),
        (f"{_CREATION}test_a_namespace_that_is_made_after_the_fence_is_fenced[sqlite]",),
    ),
    TestMutant(
        "creation-in-another-step-than-the-fence",
        "a link is written without the namespace's record, so a creation that did not see it goes through",
        edited(
            (
                "buckram.replication.sides:write_link",
                "await keys.multi([put, SetValue(layout.namespace(namespace), space.value, space.version)])",
                "await keys.multi([put])",
            )
        ),
        (f"{_CREATION}test_a_creation_that_began_before_the_fence_loses[sqlite-not replicated]",),
    ),
)
