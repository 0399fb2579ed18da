"""Bugs in what tenants may make of heads and pages, tell the cluster's healing, and have servers read."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_HEADS, _NAMES = "tests/security/test_gate_heads.py::", "tests/security/test_gate_names.py::"
_LEDGERS = "tests/security/test_gate_ledgers.py::"
_TOLD, _HOSTILE = "tests/security/test_gate_told.py::", "tests/streams/maintain/test_hostile_heads.py::"
_GATE, _NAMING = "buckram.bookie.service.metadata.change_gate:", "buckram.core.security.ledger_claims:"

MUTANTS = (
    TestMutant(
        "gate-frees-uids",
        "whoever may append deletes the key of a stream's data, and takes the uid for a stream of its own",
        edited((f"{_GATE}ChangeGate.judged", "await self._check_data(deleted, trial)", "pass")),
        (f"{_HEADS}test_a_uid_stays_taken_as_long_as_its_stream_is_there[sqlite]",),
    ),
    TestMutant(
        "gate-marks-as-deleted",
        "whoever may append marks a stream as being deleted, and a janitor deletes it",
        edited((f"{_GATE}ChangeGate.judged", "if _begins_deletion(self._places, op, before):", "if False:")),
        (f"{_HEADS}test_whoever_has_no_right_to_delete_has_no_janitor_delete[sqlite]",),
    ),
    TestMutant(
        "gate-complete-streams-become-forks",
        "whoever may append makes a fork of a stream that nobody completes, and a janitor deletes it",
        edited(
            (
                "buckram.core.security.write_limits:head_change_refusal",
                "if after.incomplete and not before.incomplete:",
                "if False:",
            )
        ),
        (f"{_HEADS}test_whoever_has_no_right_to_delete_has_no_janitor_delete[sqlite]",),
    ),
    TestMutant(
        "gate-deletion-taken-back",
        "a stream of which some is deleted can be used again",
        edited(
            (
                "buckram.core.security.write_limits:head_change_refusal",
                "if before.deleting and not after.deleting:",
                "if False:",
            )
        ),
        (f"{_HEADS}test_a_stream_that_is_being_deleted_stays_so[sqlite]",),
    ),
    TestMutant(
        "gate-uids-of-parts",
        "the data of a stream are below those of another one",
        edited(
            (
                "buckram.core.security.write_limits:head_creation_refusal",
                "if _UID.fullmatch(head.uid) is None:",
                "if False:",
            )
        ),
        (f"{_HEADS}test_a_uid_is_one_part_of_a_path[sqlite-a b]",),
    ),
    TestMutant(
        "gate-settings-of-nobody",
        "a head has settings that no program knows",
        edited(("buckram.core.security.write_limits:_policy_refusal", "check_overrides(head.policy)", "pass")),
        (f"{_HEADS}test_a_head_has_nothing_in_it_that_no_program_writes[sqlite-a setting that nobody knows]",),
    ),
    TestMutant(
        "gate-first-row-of-a-page",
        "only the first row of a page is looked at",
        edited((f"{_NAMING}uid_and_ids", "_ledgers(page.segments)", "_ledgers(page.segments[:1])")),
        (f"{_NAMES}test_each_row_is_looked_at[sqlite]",),
    ),
    TestMutant(
        "gate-pages-under-other-names",
        "a page stands under the number of another one",
        edited((f"{_NAMING}uid_and_ids", 'if at.name != f"{page.number:0{_PAGE_DIGITS}d}":', "if False:")),
        (f"{_NAMES}test_a_page_is_the_one_that_its_key_says[sqlite]",),
    ),
    TestMutant(
        "gate-holds-what-went",
        "a stream holds a ledger that was deleted while the change was judged",
        edited(
            (
                f"{_GATE}ChangeGate._check_shares",
                "return [CheckVersion(key, version) for key, version in versions.items() if key not in changed]",
                "return []",
            )
        ),
        (f"{_NAMES}test_nor_does_it_come_when_the_ledger_went_while_the_change_was_judged[sqlite]",),
    ),
    TestMutant(
        "gate-marks-without-keys",
        "a stream marks as shared what nobody holds",
        edited((f"{_GATE}ChangeGate._not_own", "if key and ledger not in claims.marks)", "if key)")),
        (f"{_NAMES}test_a_stream_marks_as_shared_what_it_holds_together_with_others_only[sqlite]",),
    ),
    TestMutant(
        "gate-believes-what-came-to-nothing",
        "a stream that could not be made gives rights on the data of another one with its uid",
        edited((f"{_GATE}ChangeGate.judged", "trial = self._rules.trial()", "trial = self._rules")),
        ("tests/security/test_gate_uids.py::test_a_stream_that_came_to_nothing_gives_no_rights[sqlite]",),
    ),
    TestMutant(
        "gate-looks-last",
        "a key below a ledger's record makes the record anew, and is checked against that",
        edited((f"{_GATE}ChangeGate.judged", "[*checks, *ops]", "[*ops, *checks]")),
        (f"{_NAMES}test_nor_does_it_come_when_the_ledger_went_while_the_change_was_judged[sqlite]",),
    ),
    TestMutant(
        "folders-of-any-key",
        "a tenant says that a key below a ledger's record went, and the record goes as an empty folder",
        edited(
            (
                "buckram.bookie.service.metadata.ledger_requests:LedgerRequests.carry_out",
                "if store.layout.ledger_of(request.key) is None:",
                "if False:",
            ),
            (
                "buckram.metadata.zookeeper.ledger_tree:ApacheTree.removed",
                "or self.layout.ledger_of(key) is None",
                "",
            ),
        ),
        ("tests/security/test_gate_ledgers.py::test_folders_are_tidied_after_ledgers_alone[zookeeper]",),
    ),
    TestMutant(
        "gate-records-without-measure",
        "a ledger's record speaks of entries without number, for each of which healing looks",
        edited(("buckram.core.security.write_limits:_size_refusal", "if last >= MOST_ENTRIES:", "if False:")),
        (f"{_LEDGERS}test_a_record_claims_no_more_than_a_ledger_can_hold[sqlite-claim1]",),
    ),
    TestMutant(
        "gate-tried-ids-are-unused",
        "an id counts as unused after a creation that nobody answered",
        edited(
            (
                "buckram.bookie.service.metadata.ledger_requests:LedgerRequests.has_unused",
                "return self._given.get(ledger) is not None",
                "return ledger in self._given",
            )
        ),
        (f"{_NAMES}test_an_id_whose_creation_nobody_answered_is_looked_up[sqlite]",),
    ),
    TestMutant(
        "told-of-any-ledger",
        "a tenant notes ledgers of others, and takes all places of notes",
        edited(
            (
                "buckram.bookie.service.metadata.key_checks:check_healing_report",
                "await judge.check(key, KeyUse.SET,",
                "_ = (",
            )
        ),
        (f"{_TOLD}test_who_writes_a_ledger_says_who_lacks_entries_of_it[sqlite]",),
    ),
    TestMutant(
        "told-by-anybody",
        "a tenant takes back what another one told of a slow bookie",
        edited(
            (
                "buckram.bookie.service.metadata.key_checks:check_healing_report",
                "elif not (await store.keys.get(op.key)).owned:",
                "elif False:",
            )
        ),
        (f"{_TOLD}test_what_a_client_says_of_slow_bookies_is_its_own_and_goes_with_it[sqlite]",),
    ),
    TestMutant(
        "janitor-ends-by-a-mistake",
        "a janitor ends by what somebody wrote into the metadata of one stream",
        edited(
            (
                "buckram.streams.maintain.janitor_report:note_problem",
                '_log.error("the janitor failed on %s because of a bug", what, exc_info=error)',
                "raise error",
            )
        ),
        (
            f"{_HOSTILE}test_a_pass_goes_on_whatever_one_intent_says[6]",
            f"{_HOSTILE}test_a_pass_goes_on_whatever_one_head_says[an end that no segment has]",
        ),
    ),
    TestMutant(
        "history-table-anywhere",
        "the metadata of a table have a janitor read and write any file",
        edited(
            (
                "buckram.streams.maintain.history.iceberg:_PlaceIO._split",
                'if directory not in self._directories or file in ("", ".", ".."):',
                "if False:",
            )
        ),
        ("tests/streams/maintain/history/test_iceberg.py::test_a_table_names_no_file_elsewhere[location]",),
    ),
    TestMutant(
        "quota-of-each-bookie",
        "two bookies each count the streams of a namespace, and each creates the last one of the quota",
        edited(
            (
                "buckram.bookie.accounting.creation_quotas:QuotasOfCreations._in_turn",
                "also.append(await self._tenants.turn(namespace))",
                "pass",
            )
        ),
        (
            "tests/security/test_gate_quotas.py::test_streams_are_held_to_the_quota_through_all_bookies_together[sqlite]",
        ),
    ),
    TestMutant(
        "rates-by-claimed-copies",
        "a ledger whose record speaks of a thousand copies has a thousand times the rate",
        edited(("buckram.bookie.service.security.ledger_owners:Owners.look", "if 0 < await", "if False and 0 < await")),
        (
            "tests/bookie/service/security/test_ledger_owners.py::test_a_record_speaks_of_as_many_copies_as_there_are_bookies",
        ),
    ),
)
