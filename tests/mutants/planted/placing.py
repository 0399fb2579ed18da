"""Placement: a topology that is read once, rules that are forgotten on the way, moves that lose copies."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

CLIENT, REPAIR = "tests/client/write/test_placement.py", "tests/client/maintain/test_placement.py"
CHOOSE = "tests/core/placement/test_choose.py"
HOSTS = "tests/core/placement/test_hosts.py"

RECENT, LATENCY = "tests/client/cluster/test_recent_bookies.py", "tests/core/placement/test_latency.py"

MUTANTS = (
    TestMutant(
        "slow-replicas-first",
        "readers ask a slow replica as often as the others",
        edited(
            (
                "buckram.client.cluster.recent_bookies:RecentBookies.quick_first",
                "return quick_first(members, now, (self.reads, self.batches))",
                "return members",
            )
        ),
        (f"{RECENT}::test_reads_go_to_quick_replicas_and_come_back_to_one_that_recovered",),
        slow=True,
    ),
    TestMutant(
        "slow-for-ever",
        "a replica that was slow once is never asked again",
        edited(("buckram.core.placement.latency:Latencies.may_retry", ">= RETRY_S", ">= float('inf')")),
        (f"{LATENCY}::test_a_slow_one_is_tried_again_now_and_then_until_it_is_quick",),
    ),
    TestMutant(
        "slow-adds-unnoticed",
        "nobody follows how long adds take",
        edited(("buckram.client.write.outbox:Outbox.send_now", "if self.probe.due(", "if False and self.probe.due(")),
        (f"{RECENT}::test_new_ensembles_avoid_a_bookie_whose_adds_take_long",),
        slow=True,
    ),
    TestMutant(
        "quick-before-safe",
        "a slow bookie is avoided although the copies are then in one rack",
        edited(("buckram.core.placement.choose:_avoiding_slow", "for rule in policy.rules:", "for rule in ():")),
        (f"{CHOOSE}::test_a_slow_bookie_is_taken_where_no_other_one_is_in_a_second_rack",),
    ),
    TestMutant(
        "hosts-are-no-rule",
        "a policy that says nothing of hosts asks for none",
        edited(("buckram.core.placement.policy:_parsed", "found += [] if HOSTS.level in rules else [HOSTS]", "pass")),
        (f"{HOSTS}::test_as_the_documents_recommend_it_no_ledger_has_two_copies_on_one_host",),
    ),
    TestMutant(
        "loopback-is-a-host",
        "bookies that register no host and listen on 127.0.0.1 of several machines count as one host",
        edited(("buckram.core.placement.topology:_registered", "elif not is_loopback(info.address.host):", "else:")),
        ("tests/core/placement/test_topology.py::test_a_host_is_what_a_bookie_registers_else_that_of_its_address",),
    ),
    TestMutant(
        "best-is-named",
        "ledgers are named that no move would spread better",
        edited(("buckram.core.placement.judge:breaches", "min(needed, attainable.get(rule.level, needed))", "needed")),
        (f"{HOSTS}::test_the_write_quorum_on_the_fewest_hosts_is_on_as_many_as_can_be",),
    ),
    TestMutant(
        "better-is-not-enough",
        "members are moved only where that meets all of the policy",
        edited(("buckram.core.placement.choose:_aims", "if not any(now[part] for part in firm):", "if True:")),
        (f"{HOSTS}::test_where_racks_cannot_be_mended_hosts_are",),
    ),
    TestMutant(
        "kinds-mixed-up",
        "a place that failed stands for others that are not alike",
        edited(("buckram.core.placement.search:Search._kind", "None if lone and not used else domain", "None")),
        ("tests/core/placement/test_search.py::test_it_finds_one_whenever_there_is_one",),
    ),
    TestMutant(
        "topology-read-once",
        "a client that runs does not hear that bookies are in other places",
        edited(
            (
                "buckram.client.cluster.bookies:BookieWatcher._configured_topology",
                "read_topology(self._store, self._stale.set)",
                "read_topology(self._store)",
            )
        ),
        (f"{CLIENT}::test_a_running_writer_hears_that_a_bookie_is_in_another_rack",),
        slow=True,
    ),
    TestMutant(
        "writer-keeps-old-places",
        "the list is read anew, and a writer that runs goes on with the racks of its beginning",
        edited(
            ("buckram.client.write.ensemble_change:EnsembleChange.bookies_changed", "window.relocated()", "False"),
        ),
        (f"{CLIENT}::test_a_running_writer_hears_that_a_bookie_is_in_another_rack",),
        slow=True,
    ),
    TestMutant(
        "placement-not-recorded",
        "a ledger does not keep the policy that it was made with",
        edited(("buckram.core.placement.policy:policy_of", "if kept is None:", "if True:")),
        (f"{CLIENT}::test_a_ledger_keeps_the_policy_it_was_made_with",),
    ),
    TestMutant(
        "moved-without-copies",
        "a member gives way before the new one has its entries (M7)",
        edited(
            (
                "buckram.client.maintain.repair:_Repair._spread",
                "await self._member(fragment, last, position, old, new) and ",
                "",
            )
        ),
        (f"{REPAIR}::test_a_member_stays_until_another_holds_all_it_has",),
    ),
    TestMutant(
        "tenants-share",
        "a ledger without a label gets the bookies of somebody's group",
        edited(
            (
                "buckram.core.placement.policy:PlacementPolicy.label_fits",
                "if self.label else not labels",
                "if self.label else True",
            )
        ),
        (f"{CHOOSE}::test_a_ledger_with_a_label_gets_the_bookies_of_its_group",),
    ),
)
