"""Placement: a topology that is read once, rules that are forgotten on the way, moves that lose copies."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

CLIENT, REPAIR = "tests/client/write/test_placement.py", "tests/client/maintain/test_placement.py"
CHOOSE = "tests/core/placement/test_choose.py"

MUTANTS = (
    TestMutant(
        "topology-read-once",
        "a client that runs does not hear that bookies are in other places",
        edited(
            (
                "buckram.client.shared.bookies:BookieWatcher._configured_topology",
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
