"""Bugs in noticing an older metadata store: witnesses, epochs, restores, limits of collection, replaced files."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_ADMISSION = "buckram.bookie.service.entries.admission:Admission._require_trust"
_WITNESS = "tests/bookie/trust/test_witness.py::"
_CORE = "tests/core/cluster/test_store_history.py::test_a_store_that_went_back"
_FILE = "tests/metadata/test_sqlite_replaced.py::"
_CLIENT = "tests/contracts/test_backup.py::"
_IDS = "tests/contracts/test_metadata_store.py::"
_KNOWN_AGAIN = "test_a_contradiction_ends_when_the_ledger_is_known_again_as_it_was"

MUTANTS = (
    TestMutant(
        "history-version-unchecked",
        "a lower version of the witness key is no alarm",
        edited(("buckram.core.cluster.store_history:_compare", "if found.version < confirmed.version:", "if False:")),
        (_CORE, _WITNESS + "test_a_store_that_went_back_gets_no_writes_and_is_not_believed"),
        slow=True,
    ),
    TestMutant(
        "history-value-unchecked",
        "another value at the same version is no alarm",
        edited(("buckram.core.cluster.store_history:_compare", "found.value != confirmed.value", "False")),
        (_CORE,),
    ),
    TestMutant(
        "history-restore-unchecked",
        "the restore id is ignored",
        edited(
            ("buckram.core.cluster.store_history:judge", "if history.restore != memory.history.restore:", "if False:")
        ),
        (_CORE,),
    ),
    TestMutant(
        "history-epoch-unchecked",
        "an epoch below the highest known one is no alarm",
        edited(("buckram.core.cluster.store_history:judge", "if history.epoch < memory.epoch:", "if False:")),
        (_CORE, _WITNESS + "test_an_epoch_that_a_client_tells_outlives_the_process"),
        slow=True,
    ),
    TestMutant(
        "history-unaccepted-believed",
        "a restore that no operator accepted is believed",
        edited(("buckram.core.cluster.store_history:judge", "if not history.accepted:", "if False:")),
        (_CORE, _WITNESS + "test_a_restore_that_nobody_accepted_is_waited_for"),
        slow=True,
    ),
    TestMutant(
        "history-lost-answer-alarms",
        "a higher version of the witness key is an alarm",
        edited(
            (
                "buckram.core.cluster.store_history:_compare",
                "if found.version < confirmed.version:",
                "if found.version != told.version:",
            )
        ),
        (
            "tests/core/cluster/test_store_history.py::test_a_change_whose_answer_was_lost_is_no_alarm",
            _WITNESS + "test_restarts_crashes_and_lost_files_of_one_change_are_no_alarm",
        ),
        slow=True,
    ),
    TestMutant(
        "history-suspect-admits",
        "an admission uses what it read before the store went back",
        edited((_ADMISSION, "if not await self._trust.confirm():", "if False:")),
        (_WITNESS + "test_a_ledger_that_only_the_lost_history_knew_is_not_fenced",),
        slow=True,
    ),
    TestMutant(
        "history-suspect-takes-adds",
        "a suspect bookie goes on to accept adds",
        edited(("buckram.bookie.process:Bookie.trust_changed", "self.store.suspended = suspect", "pass")),
        (_WITNESS + "test_a_store_that_went_back_gets_no_writes_and_is_not_believed",),
        slow=True,
    ),
    TestMutant(
        "history-suspect-registered",
        "a suspect bookie stays registered",
        edited(
            ("buckram.bookie.process:Bookie.trust_changed", "set_withdrawn(suspect or ", "set_withdrawn("),
            (
                "buckram.bookie.registration:Registration._register",
                "if not self._withdrawn and not await self._trust.confirm():",
                "if False:",
            ),
        ),
        (_WITNESS + "test_a_store_that_went_back_gets_no_writes_and_is_not_believed",),
        slow=True,
    ),
    TestMutant(
        "history-brake-off",
        "any number of ledgers is deleted without confirmation",
        edited(("buckram.bookie.garbage.gc_limits:DeletionLimits.released", " and vanished[one] <= most", "")),
        (_WITNESS + "test_very_many_at_once_wait_for_a_word_that_counts_once",),
    ),
    TestMutant(
        "history-word-counts-twice",
        "a confirmation to collect counts more than once",
        edited(
            (
                "buckram.bookie.garbage.gc_limits:DeletionLimits.released",
                "word and word != self._witness.memory.collected",
                "word",
            )
        ),
        (_WITNESS + "test_very_many_at_once_wait_for_a_word_that_counts_once",),
    ),
    TestMutant(
        "history-unreviewed-collected",
        "garbage collection goes on after a restore that no operator reviewed",
        edited(("buckram.bookie.garbage.gc_limits:DeletionLimits.released", "if reviewed and ", "if ")),
        (_WITNESS + "test_after_a_restore_nothing_goes_until_somebody_looked",),
    ),
    TestMutant(
        "history-unknown-ids-collected",
        "ledgers with ids that the store never issued are deleted",
        edited(("buckram.bookie.garbage.gc_limits:DeletionLimits._given", "if one >= below:", "if False:")),
        (_WITNESS + "test_ids_that_the_store_never_gave_are_kept",),
    ),
    TestMutant(
        "history-directory-unclaimed",
        "a directory that went back does not learn its position from the store",
        edited(
            (
                "buckram.bookie.trust.witness:Witness.prepare",
                "if first_start or found is None or self.suspect:",
                "if True:",
            )
        ),
        (_WITNESS + "test_a_directory_put_back_to_an_earlier_state_may_have_lost_data",),
    ),
    TestMutant(
        "history-inode-unchecked",
        "the open file is not compared with the one that has its name",
        edited(
            (
                "buckram.metadata.sqlite.database_file:SqliteConnection.check_file",
                "if found != self._file:",
                "if False:",
            )
        ),
        (
            _FILE + "test_a_deleted_file_is_not_gone_on_with",
            _FILE + "test_file_replaced_by_an_older_copy_is_noticed_before_a_write",
            _FILE + "test_an_idle_store_notices_within_seconds_and_its_session_is_lost",
        ),
        slow=True,
    ),
    TestMutant(
        "history-epoch-of-bookies-ignored",
        "a client goes on with a store of an older epoch than its bookies'",
        edited(("buckram.client.cluster.store_history:StoreHistory._judge", "if now.epoch < self.epoch:", "if False:")),
        (_CLIENT + "test_a_client_refuses_metadata_older_than_bookies_have_seen[memory]",),
    ),
    TestMutant(
        "history-epoch-of-bookies-not-learned",
        "a client does not learn the epoch of its bookies",
        edited(
            ("buckram.client.cluster.identities:Identities.on_identity", "self.past.note_epoch(identity.epoch)", "pass")
        ),
        ("tests/client/test_strangers.py::test_a_client_refuses_a_store_whose_epoch_its_bookies_have_passed",),
    ),
    TestMutant(
        "history-contradiction-for-good",
        "a contradiction stays after the right store is back",
        edited(
            (
                "buckram.bookie.trust.witness:Witness._check_contradiction",
                "contradiction=None",
                "contradiction=recorded",
            )
        ),
        (_WITNESS + _KNOWN_AGAIN,),
        slow=True,
    ),
    TestMutant(
        "history-contradiction-forgotten",
        "the next check forgets a contradiction, whatever the store contains",
        edited(
            (
                "buckram.bookie.trust.witness:Witness._check_contradiction",
                "recorded is None or await self._birth_in_store(recorded.ledger_id) != recorded.birth",
                "recorded is None",
            )
        ),
        (_WITNESS + _KNOWN_AGAIN,),
    ),
    TestMutant(
        "used-ids-forgotten",
        "an id that was chosen is not recorded as used",
        edited(
            (
                "buckram.metadata.tree.ledger_tree:with_used",
                "place = ledger_id % BUCKET",
                'return b""\n    place = ledger_id % BUCKET',
            )
        ),
        (
            _IDS + "test_an_id_chosen_by_hand_stays_used_after_its_ledger_is_deleted[memory]",
            _IDS + "test_an_id_chosen_by_hand_stays_used_after_its_ledger_is_deleted[sqlite]",
            _IDS + "test_ids_chosen_by_hand_are_never_allocated[memory]",
        ),
    ),
    TestMutant(
        "used-ids-given",
        "the counter issues ids that were chosen before",
        edited(
            (
                "buckram.metadata.tree.ledger_tree:FolderTree._unused",
                "left += [one for one in mine if not is_used(used, one)] if used else mine",
                "left += mine",
            )
        ),
        (_IDS + "test_ids_chosen_by_hand_are_never_allocated[memory]",),
    ),
    TestMutant(
        "used-ids-taken-again",
        "an id that was used can be chosen again",
        edited(
            ("buckram.metadata.tree.ledger_tree:FolderTree._marking", "if is_used(intervals, ledger_id):", "if False:")
        ),
        (_IDS + "test_an_id_chosen_by_hand_stays_used_after_its_ledger_is_deleted[memory]",),
    ),
    TestMutant(
        "export-beside-the-forgotten",
        "an export goes on beside copies that the metadata have forgotten",
        edited(("buckram.streams.maintain.history.export:_check_known", "first = min(unknown.values())", "return")),
        ("tests/streams/maintain/history/test_export.py::test_copies_that_the_metadata_have_forgotten_stop_an_export",),
    ),
)
