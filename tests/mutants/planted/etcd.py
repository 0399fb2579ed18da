"""Bugs of metadata on etcd, and of moving metadata: fences, conditions, watches, interrupted moves."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

KEYS = "tests/metadata/etcd/test_keys.py::"
MOVING = "tests/contracts/test_moving.py::"
WATCHES = "tests/contracts/test_key_store_watches.py::"

MUTANTS = (
    TestMutant(
        "etcd-no-doubt",
        "a change without an answer is forgotten, and may happen later",
        edited(("buckram.metadata.etcd.session:EtcdSession.doubt", "self.fence == fence", "False")),
        (KEYS + "test_a_change_that_a_read_did_not_see_cannot_happen_any_more",),
    ),
    TestMutant(
        "etcd-doubt-read-past",
        "a read does not wait until what was sent before is void",
        edited(("buckram.metadata.etcd.keys:EtcdKeys._settle_doubt", "self.session.in_doubt", "False")),
        (KEYS + "test_a_change_that_a_read_did_not_see_cannot_happen_any_more",),
    ),
    TestMutant(
        "etcd-other-session",
        "a key of an ended session is changed although it is another session's by now",
        edited(("buckram.metadata.etcd.keys:EtcdKeys._check_bound", "if not bound:", "if True:")),
        (KEYS + "test_a_registration_of_an_ended_session_is_somebody_elses",),
    ),
    TestMutant(
        "etcd-range-any-revision",
        "conditions that are taken together hold for newer keys, too",
        edited(("buckram.metadata.etcd.key_records:_conditions", "work.view.revision + 1", "1 << 62")),
        (KEYS + "test_a_multi_that_is_taken_together_happens_on_nothing_newer",),
    ),
    TestMutant(
        "etcd-children-unchecked",
        "a key is deleted although somebody makes a child at the same time",
        edited(("buckram.metadata.etcd.key_records:_of_present", "for key in work.emptied:", "for key in ():")),
        (KEYS + "test_a_child_that_appears_keeps_its_parent",),
    ),
    TestMutant(
        "etcd-compaction-silent",
        "watches whose events were forgotten wait for later ones",
        edited(
            (
                "buckram.metadata.etcd.session:_Folder._handle",
                "compacted - 1)\n            self.fire_all()",
                "compacted - 1)",
            )
        ),
        (KEYS + "test_a_compacted_history_leads_to_reading_again",),
        slow=True,
    ),
    TestMutant(
        "etcd-watch-from-now",
        "a stream that was cut goes on with what comes next",
        edited(
            (
                "buckram.metadata.etcd.session:_Folder._request",
                '"start_revision": str(self._at + 1)',
                '"start_revision": "0"',
            )
        ),
        (KEYS + "test_watches_go_on_after_a_lost_connection_and_miss_nothing",),
        slow=True,
    ),
    TestMutant(
        "etcd-watch-old-events",
        "a watch fires for changes that were read with it",
        edited(("buckram.metadata.etcd.session:_Folder._changed", "revision > armed.since", "True")),
        (KEYS + "test_a_watch_does_not_fire_for_what_was_read_with_it",),
    ),
    TestMutant(
        "etcd-put-back-silent",
        "watches wait for revisions that servers that were put back will not have for long",
        edited(("buckram.metadata.etcd.session:_Folder._handle", "now < self._at", "False")),
        (KEYS + "test_servers_that_were_put_back_are_noticed_by_watches",),
        slow=True,
    ),
    TestMutant(
        "moving-copy-usable",
        "the copy is used before it is whole",
        edited(("buckram.metadata.maintain.migration:_claim", "accepted=False", "accepted=True")),
        (MOVING + "test_interrupted_move_locks_both_stores_until_the_call_is_repeated[False]",),
    ),
    TestMutant(
        "moving-source-usable",
        "the source is used while it is copied",
        edited(
            (
                "buckram.metadata.maintain.migration:move",
                "replace(before, accepted=False,",
                "replace(before,",
            )
        ),
        (MOVING + "test_a_move_that_is_abandoned_leaves_the_source_as_it_was",),
    ),
    TestMutant(
        "moving-unverified",
        "what somebody adds during a move is lost",
        edited(("buckram.metadata.maintain.migration:_verify", "if wrong:", "if False:")),
        (MOVING + "test_who_changes_the_source_meanwhile_is_found_out",),
    ),
    TestMutant(
        "moving-ids-again",
        "ids that were given before a move are given again",
        edited(("buckram.metadata.maintain.migration:move", "if next_id:", "if False:")),
        (MOVING + "test_everything_arrives_and_the_cluster_goes_on_there[sqlite-etcd]",),
    ),
    TestMutant(
        "moving-believes-all",
        "a bookie believes metadata that were older than itself when they were moved",
        edited(
            (
                "buckram.core.cluster.store_history:_compare_moved",
                "_reach(found.value) > _reach(confirmed.value)",
                "True",
            )
        ),
        (MOVING + "test_what_came_by_a_move_is_compared_by_what_it_says",),
    ),
)
