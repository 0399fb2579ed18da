"""Bugs of the gate that judges what tenants change in the metadata."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_NAMES, _UIDS = "tests/security/test_gate_names.py::", "tests/security/test_gate_uids.py::"
_LEDGERS, _BOUNDS = "tests/security/test_gate_ledgers.py::", "tests/security/test_gate_bounds.py::"
_NAMING, _GATE = "buckram.core.security.ledger_claims:", "buckram.bookie.service.metadata.change_gate:"
_AT_ONCE = "buckram.bookie.service.metadata.immediate_changes:AtOnce"
_SERVICE = "buckram.bookie.service.metadata.metadata_service:"
_NAMESPACES = (
    "tests/security/test_gate_at_once.py::test_new_namespaces_are_those_of_the_grants_whatever_may_be_known_of_default"
)

MUTANTS = (
    TestMutant(
        "gate-readers-hold-for-owners",
        "who may only read a stream makes keys below its ledgers that hold them for it",
        edited((f"{_GATE}ChangeGate._check_shares", "others == {op.key}", "not others")),
        (f"{_NAMES}test_a_fork_names_what_it_holds[sqlite]",),
    ),
    TestMutant(
        "gate-cursors-unjudged",
        "a tenant sets keys below the streams of another one, where no look at the store is needed",
        edited(
            (
                f"{_AT_ONCE}._sets",
                'return self._rules.refusal(op.key, KeyUse.SET, op.value) == ""',
                "return True",
            )
        ),
        (f"{_BOUNDS}test_what_is_set_again_and_again_is_judged_each_time[sqlite-cursors/c]",),
    ),
    TestMutant(
        "gate-cursors-made-unjudged",
        "a tenant makes keys below the streams of another one, where no look at the store is needed",
        edited((f"{_AT_ONCE}._creates", 'self._rules.refusal(op.key, KeyUse.CREATE, op.value) == "" and', "")),
        ("tests/security/test_gate_at_once.py::test_what_is_made_and_deleted_is_judged_each_time[sqlite-cursors/c]",),
    ),
    TestMutant(
        "gate-cursors-deleted-unjudged",
        "a tenant deletes keys below the streams of another one, where no look at the store is needed",
        edited((f"{_AT_ONCE}.allows", 'self._rules.refusal(op.key, KeyUse.DELETE) == ""', "True")),
        ("tests/security/test_gate_at_once.py::test_what_is_made_and_deleted_is_judged_each_time[sqlite-cursors/c]",),
    ),
    TestMutant(
        "gate-uids-go",
        "a tenant deletes the key which says that the uid of its stream is taken",
        edited((f"{_AT_ONCE}.allows", 'op.key.count("/") < self._places.data.count("/") + 2', "False")),
        (
            "tests/security/test_gate_at_once.py::test_the_key_of_a_uid_stays_and_no_intent_is_of_an_id_of_others[sqlite]",
        ),
    ),
    TestMutant(
        "gate-intents-of-any-id",
        "a tenant makes the intent of an id that was given to somebody else",
        edited((f"{_AT_ONCE}.allows", "self._creates(op, at)", "self._creates(op, None)")),
        (
            "tests/security/test_gate_at_once.py::test_the_key_of_a_uid_stays_and_no_intent_is_of_an_id_of_others[sqlite]",
        ),
    ),
    TestMutant(
        "gate-namespaces-made-unjudged",
        "a tenant makes namespaces that it has no grant on, where no look at the store is needed",
        edited((f"{_AT_ONCE}._makes_namespace", 'self._rules.refusal(op.key, KeyUse.CREATE, op.value) == ""', "True")),
        (f"{_NAMESPACES}[sqlite]",),
    ),
    TestMutant(
        "gate-conditions-unjudged",
        "a tenant learns by the creation of a namespace which version the record of another one's has",
        edited((f"{_AT_ONCE}._makes_namespace", 'self._rules.refusal(same.key, KeyUse.READ) != ""', "False")),
        (f"{_NAMESPACES}[sqlite]",),
    ),
    TestMutant(
        "gate-namespaces-unnoted",
        "the audit trail has no namespace that was made where no look at the store is needed",
        edited((f"{_SERVICE}KeyTurn._changed", "one.keys.changed_at_once(one.request.ops)", "pass")),
        ("tests/security/test_gate_noted.py::test_a_new_namespace_once_by_whoever_made_it",),
    ),
    TestMutant(
        "gate-names-anything",
        "a tenant names ledgers of another one in its heads and pages, which servers then read and delete",
        edited((f"{_GATE}ChangeGate.judged", "await self._check_names(ops, before, trial)", "pass")),
        (f"{_NAMES}test_nobody_names_a_ledger_of_another_stream[sqlite-in_tail]",),
    ),
    TestMutant(
        "gate-believes-names",
        "an owner mark counts for whatever stream has that name now",
        edited((f"{_GATE}_is_made_for", "_owner(record) == (name, uid)", "(_owner(record) or ('',))[0] == name")),
        (f"{_NAMES}test_an_owner_mark_counts_by_name_and_uid[sqlite]",),
    ),
    TestMutant(
        "gate-believes-uids",
        "an owner mark counts for whatever stream has that uid now",
        edited((f"{_GATE}_is_made_for", "_owner(record) == (name, uid)", "(_owner(record) or ('', ''))[1] == uid")),
        (f"{_NAMES}test_an_owner_mark_counts_by_name_and_uid[sqlite]",),
    ),
    TestMutant(
        "gate-new-intents-prove",
        "an intent that the same change creates and deletes proves that an id is the stream's",
        edited(
            (f"{_NAMING}_before", "set() if op.key in created else {_id(op.key, at.name)}", "{_id(op.key, at.name)}")
        ),
        (f"{_NAMES}test_an_intent_proves_an_id_only_if_it_was_there_before[sqlite]",),
    ),
    TestMutant(
        "gate-files-prove",
        "the id in a row of files proves one of a ledger",
        edited((f"{_NAMING}_ledgers", "if row.kind == LEDGER", "")),
        (f"{_NAMES}test_files_are_no_ledgers_and_prove_none[sqlite]",),
    ),
    TestMutant(
        "gate-only-keeper-of-a-ledger",
        "a fork alone holds a ledger that its source lists, and the last to let go deletes it",
        edited((f"{_GATE}ChangeGate._check_shares", "if not known and not", "if False and not")),
        (f"{_NAMES}test_a_fork_names_what_it_holds[sqlite]",),
    ),
    TestMutant(
        "gate-refuses-what-conflicts",
        "an honest client whose ledger was truncated meanwhile is told that it names another's",
        edited((f"{_GATE}ChangeGate._check_names", "await self._say_conflicts(ops)", "pass")),
        (f"{_NAMES}test_a_conflict_is_said_before_a_ledger_that_is_gone[sqlite]",),
    ),
    TestMutant(
        "gate-takes-a-uid",
        "a stream is made anew with the uid of a victim, whose keys the same change deletes",
        edited((f"{_GATE}ChangeGate._check_one", "good = not taken if", "good = True if")),
        (f"{_UIDS}test_nor_in_two_steps_or_by_a_change_of_the_head[sqlite]",),
    ),
    TestMutant(
        "gate-makes-anew",
        "one change deletes a key and makes it again",
        edited((f"{_GATE}ChangeGate._check_forms", "op.key in deleted and not goes", "False")),
        (f"{_UIDS}test_the_same_key_is_not_made_and_deleted_in_one_change[sqlite]",),
    ),
    TestMutant(
        "gate-any-id",
        "a tenant creates a ledger under an id that it was not given",
        edited(
            (
                "buckram.bookie.service.metadata.ledger_requests:LedgerRequests._create",
                "if number not in self._given:",
                "if False:",
            )
        ),
        (f"{_LEDGERS}test_a_ledger_gets_an_id_that_this_session_was_given[sqlite]",),
    ),
    TestMutant(
        "gate-births-of-others",
        "a tenant creates a ledger without a birth of its own",
        edited(
            (
                "buckram.core.security.write_limits:record_creation_refusal",
                "if not is_certain(birth_of(record)):",
                "if False:",
            )
        ),
        (f"{_LEDGERS}test_a_ledger_has_a_birth_of_its_own[sqlite-]",),
    ),
    TestMutant(
        "gate-records-by-change",
        "a change of keys creates a ledger's record",
        edited(
            (
                f"{_GATE}ChangeGate._check_one",
                "if isinstance(op, Create) and self._rules.is_ledger(op.key):",
                "if False:",
            )
        ),
        (f"{_LEDGERS}test_no_change_creates_a_ledger[sqlite]",),
    ),
    TestMutant(
        "gate-marks-change",
        "a ledger's custom metadata change, and with them whose it is",
        edited(
            (
                "buckram.core.security.write_limits:lasting_change",
                "if dict(before.custom_metadata) != dict(after.custom_metadata):",
                "if False:",
            )
        ),
        (f"{_LEDGERS}test_what_makes_a_ledger_this_one_never_changes[sqlite-uid]",),
    ),
    TestMutant(
        "gate-values-without-bounds",
        "a tenant writes cursors of half a megabyte",
        edited((f"{_GATE}_check_size", "if bound is not None and", "if False and")),
        (f"{_BOUNDS}test_three_hundred_cursors_of_half_a_megabyte_are_none[sqlite]",),
    ),
    TestMutant(
        "gate-keys-without-number",
        "a tenant makes any number of keys",
        edited((f"{_GATE}ChangeGate._check_room", "if left < more:", "if False:")),
        (f"{_BOUNDS}test_keys_of_a_kind_are_counted_once_and_then_those_that_come[sqlite]",),
    ),
    TestMutant(
        "doors-files-overwrite",
        "whoever may append overwrites files through Hadoop's paths",
        edited(("buckram.serve.webhdfs.server:WebHdfs._create", "asked and call", "asked or call")),
        ("tests/serve/gateway/test_doors.py::test_objects[append+read]",),
    ),
    TestMutant(
        "quota-without-those-in-flight",
        "ledgers that are created at the same time pass their quota",
        edited(
            ("buckram.bookie.accounting.creation_quotas:QuotasOfCreations._limited", "+ self._making[namespace]", "")
        ),
        ("tests/security/test_gate_quotas.py::test_ledgers_that_are_being_created_count",),
    ),
    TestMutant(
        "quota-forgets-what-a-count-missed",
        "what is created during a count of all ledgers is in no count",
        edited(("buckram.bookie.accounting.creation_quotas:QuotasOfCreations._forget_counted", "if one < begun", "")),
        ("tests/security/test_gate_quotas.py::test_what_is_created_during_a_count_counts_until_the_next_one",),
    ),
)
