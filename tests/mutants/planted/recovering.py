"""Bugs of recovery and repair: changed metadata, write-back, writes in doubt, convictions, undurable copies."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

RECOVER, REPAIR = "buckram.client.maintain.recover", "buckram.client.maintain.repair:_Repair"
COPIES = "buckram.client.maintain.copy_reads:CopyReads"
ABSENCE, CORE = "tests/client/maintain/test_recover_absence.py", "tests/core/ledgers/test_recovery.py"
OTHER = f"{ABSENCE}::test_what_was_found_closes_no_other_record"
REPLACED = f"{CORE}::TestWriteBack::test_a_failed_member_is_replaced_privately_from_the_head_on"
AUDIT, ACCUSED = "tests/client/maintain/test_replica_audit.py", "tests/client/maintain/test_accused.py"

CHANGE = "buckram.client.write.ensemble_change:EnsembleChange"

MUTANTS = (
    TestMutant(
        "recovery-other-record",
        "a recovery closes other metadata than it was made for",
        edited((f"{RECOVER}:_same", "now.last_fragment == before.last_fragment", "True")),
        (OTHER,),
    ),
    TestMutant(
        "recovery-first-fragments",
        "a recovery closes the record of today with the fragments that it began with",
        edited(
            (
                f"{RECOVER}:_Attempt.run",
                "return recovered(metadata, fragments, back.head, length)",
                (
                    "first = __import__('dataclasses').replace(metadata, fragments=self._metadata.fragments)\n"
                    "        return recovered(first, fragments, back.head, length)"
                ),
            )
        ),
        (f"{ABSENCE}::test_a_member_that_a_repair_replaced_meanwhile_stays_replaced",),
    ),
    TestMutant(
        "conflict-old-decision",
        "after a conflict the change is not computed again from the new metadata",
        edited(
            (
                "buckram.client.shared.ledger_metadata:MetadataCell.update",
                "wanted = change(base.metadata)",
                'wanted = first = locals().get("first") or change(base.metadata)',
            )
        ),
        (OTHER,),
    ),
    TestMutant(
        "write-back-by-the-replaced",
        "an acknowledgement counts although its bookie was replaced meanwhile",
        edited(("buckram.core.ledgers.recovery:WriteBack.acked", "if self.ensemble[position] != bookie:", "if False:")),
        (REPLACED,),
    ),
    TestMutant(
        "doubt-taken-for-failed",
        "a write whose reply was lost counts as not done",
        edited(
            (
                "buckram.client.shared.ledger_metadata:MetadataCell.in_doubt",
                "return self._doubt is not None",
                "return False",
            )
        ),
        ("tests/client/shared/test_ledger_metadata.py::test_doubt_ends_with_a_newer_record_not_with_a_refused_write",),
    ),
    TestMutant(
        "late-fence-unheard",
        "a LAC in a late fencing answer does not count",
        edited(
            (
                f"{RECOVER}:_Attempt._fencing_read",
                "self._promises.entry(bookie, answer.value)",
                "self._forward is None and self._promises.entry(bookie, answer.value)",
            )
        ),
        (f"{ABSENCE}::test_a_fencing_answer_that_comes_late_forbids_it",),
    ),
    TestMutant(
        "repair-believes-memory",
        "repair relies on copies in a bookie's memory",
        edited((f"{COPIES}._batch", "from_files=True", "from_files=False")),
        (f"{AUDIT}::test_repair_reads_what_is_on_disk_on_either_wire[3/3/2]",),
    ),
    TestMutant(
        "repair-believes-open-files",
        "a file that was removed is read as long as it is open",
        edited(("buckram.bookie.storage.reading.fetching:Fetcher.fetch", "self._files.forget(name)", "pass")),
        (f"{AUDIT}::test_a_file_that_was_removed_under_a_running_bookie_is_missed",),
    ),
    TestMutant(
        "repair-reads-nothing-back",
        "repair does not read back what it copied",
        edited((f"{REPAIR}._copy", "lost.update(", "bool(")),
        (f"{ACCUSED}::test_repair_convicts_who_acknowledges_and_denies",),
    ),
    TestMutant(
        "reborn-is-a-liar",
        "a bookie that came back without its data is convicted of lying",
        edited((f"{REPAIR}._is_still_there", "self._services.bookies.incarnation(bookie) == incarnation", "True")),
        (f"{ACCUSED}::test_who_came_back_without_its_data_meanwhile_is_no_liar",),
    ),
    TestMutant(
        "damage-goes-unsaid",
        "a bookie whose bytes fail a MAC is not suspected",
        edited(("buckram.client.maintain.evidence:Accuser.looked_at", "elif self._sealed:", "elif False:")),
        (f"{ACCUSED}::test_damage_under_a_mac_makes_a_suspect_and_no_liar",),
    ),
    TestMutant(
        "damage-is-always-suspect",
        "a bookie is suspected for damage that any bookie could cause",
        edited(("buckram.client.maintain.evidence:Accuser.looked_at", "elif self._sealed:", "else:")),
        (f"{ACCUSED}::test_damage_that_any_bookie_could_have_made_is_not_held_against_it",),
    ),
    TestMutant(
        "audit-damage-goes-unsaid",
        "an audit does not report bytes that fail their digest",
        edited(("buckram.client.maintain.replica_audit:_PieceCheck.singles", "self._report.unfit = entry", "pass")),
        (f"{ACCUSED}::test_audit_tells_lies_from_damage_and_checkup_names_the_convicted",),
    ),
    TestMutant(
        "convicted-stays",
        "a writer goes on with a convicted bookie",
        edited((f"{CHANGE}._leave", "if not leaving or", "if True or")),
        (f"{ACCUSED}::test_a_running_writer_leaves_a_member_that_is_convicted",),
    ),
    TestMutant(
        "convicted-goes-at-once",
        "a convicted bookie is removed although there is no replacement",
        edited(
            (
                f"{CHANGE}._leave",
                "self._choose(window.ensemble, members, leaving, doomed=False) if members else ()",
                "members",
            )
        ),
        (f"{ACCUSED}::test_a_writer_keeps_a_convicted_member_until_another_bookie_is_there",),
    ),
    TestMutant(
        "salvage-forgets-births",
        "a salvaged ledger has another birth than on its bookies",
        edited(
            (
                "buckram.client.maintain.salvage:Salvage.bring_back",
                'birth=birth if is_certain(birth) else b""',
                'birth=b""',
            )
        ),
        (
            "tests/client/maintain/test_salvage.py::"
            "test_a_ledger_comes_back_with_its_birth_and_goes_on_being_that_ledger",
        ),
    ),
    TestMutant(
        "salvage-mixes-births",
        "bookies with another ledger of the same id are listed, too",
        edited(("buckram.client.maintain.salvage:Salvage.bring_back", " if found.births.get(one, birth) == birth", "")),
        (
            "tests/client/maintain/test_salvage.py::"
            "test_of_two_ledgers_that_had_the_id_the_one_that_is_named_comes_back",
        ),
    ),
)
