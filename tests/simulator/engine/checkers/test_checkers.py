"""Tests of the checkers: each bad history must violate its invariant, and good ones none."""

from __future__ import annotations

import pytest
from tests.simulator.engine.checkers.bad_disks import (
    bad_digest_on_an_undamaged_disk,
    changed_with_one_copy_on_disk,
    closed_with_one_copy_on_disk,
    denies_after_a_restart,
    emptied_bookie_counts_in_its_old_fragment,
    fence_lost_when_its_file_is_replaced,
    on_no_disk_at_the_end,
    unreadable_on_all_disks,
    wrong_length_on_a_disk,
)
from tests.simulator.engine.checkers.bad_peers import (
    absent_although_one_did_not_answer,
    absent_in_an_ensemble_that_was_replaced,
    ack_after_delete,
    ack_long_after_the_fence,
    ack_that_would_not_survive,
    add_accepted_after_the_fence,
    append_ends_twice,
    append_never_ends,
    bad_bytes_reach_a_reader,
    bookie_deletes_an_open_ledger,
    closed_without_enough_answers,
    deferred_ensemble_changes,
    denies_what_it_acknowledged,
    ensembles_changed_in_recovery,
    explicit_gap,
    fence_not_durable,
    final_read_stops_short,
    force_without_the_data,
    inserted_while_fenced,
    lac_beyond_the_end,
    new_id_refused,
    not_enough_bookies_although_all_are_well,
    one_rack,
    one_rack_in_the_metadata,
    opening_a_ledger_changes_metadata,
    opening_a_ledger_fences_it,
    poll_not_answered,
    quorum_but_no_ack,
    read_above_the_lac,
    read_beyond_the_end,
    reads_disagree,
    recoveries_lose_an_ack,
    recovery_below_the_last_fragment,
    recovery_reads_before_enough_fences,
    recovery_reads_from_another_bookie,
    recovery_reports_another_end,
    replacement_lacks_copies,
    stored_after_it_was_denied,
    wrong_key_accepted,
    wrong_key_stored,
)
from tests.simulator.engine.checkers.bad_recoveries import (
    acknowledged_by_a_liar_alone,
    closed_below_a_copy,
    closed_below_a_header,
    closed_below_a_sealed_lac,
    closed_with_a_liar_alone,
    closed_without_the_answer_of_a_well_bookie,
    closed_without_the_answer_of_one_that_came_back,
    closed_without_the_answer_of_one_that_came_back_just_now,
    convicts_an_honest_bookie,
    recovery_ignores_a_reachable_honest_bookie,
)
from tests.simulator.engine.checkers.bad_writers import (
    ack_after_close,
    acks_out_of_order,
    another_payload_stored,
    change_with_a_guessed_version,
    closed_below_an_ack,
    closed_beyond_what_was_sent,
    closed_twice,
    closed_with_one_copy,
    copies_outside_the_ensemble,
    earlier_append_never_ends,
    ensemble_with_a_bookie_twice,
    fragment_below_an_ack,
    fragments_without_the_copies,
    lac_falls,
    one_copy_of_two,
    reopened,
    sent_with_another_payload,
    wrong_length_at_close,
    wrong_length_in_a_header,
    wrong_length_stored,
)
from tests.simulator.engine.checkers.history import LEDGER, History, good

from buckram.errors import Code
from simulator.engine.checkers.report import INVARIANTS
from simulator.engine.pace import Pace


def test_good_history_has_no_violation() -> None:
    h = good()
    assert h.report.violations == []
    assert h.report.evaluated["S4"] == 3
    assert h.report.evaluated["S19"] == 1


def test_good_recovery_has_no_violation() -> None:
    h = History()
    h.write(2)
    h.recovery()
    for bookie in h.ensemble:
        h.fence(bookie, -1, Code.OK)
    for bookie in ("b1", "b2"):
        h.fence(bookie, 2)
    h.close(1, "c1")
    h.judge.recovery_ended("c1", LEDGER, 1, sum(map(len, h.handle.payloads)))
    h.judge.life_ended()
    assert h.report.violations == []
    assert h.report.evaluated["F13"] > 0


BAD = {
    "S1": [closed_below_an_ack, ack_after_close, recovery_ignores_a_reachable_honest_bookie],
    "S2": [closed_twice, reopened],
    "S3": [fragments_without_the_copies, on_no_disk_at_the_end],
    "S5": [unreadable_on_all_disks, closed_with_one_copy_on_disk, closed_with_one_copy, closed_with_a_liar_alone],
    "S4": [
        one_copy_of_two,
        copies_outside_the_ensemble,
        acknowledged_by_a_liar_alone,
        emptied_bookie_counts_in_its_old_fragment,
    ],
    "S6": [another_payload_stored, sent_with_another_payload],
    "S7": [wrong_length_stored, wrong_length_on_a_disk, bad_digest_on_an_undamaged_disk],
    "S8": [acks_out_of_order, earlier_append_never_ends],
    "S9": [closed_beyond_what_was_sent],
    "S10": [ensemble_with_a_bookie_twice, fragment_below_an_ack],
    "S11": [change_with_a_guessed_version],
    "S12": [lac_falls, fragments_without_the_copies, changed_with_one_copy_on_disk],
    "S13": [wrong_length_at_close, wrong_length_in_a_header],
    "S14": [read_beyond_the_end],
    "S15": [reads_disagree],
    "S16": [read_above_the_lac],
    "S17": [bad_bytes_reach_a_reader],
    "S18": [absent_although_one_did_not_answer, absent_in_an_ensemble_that_was_replaced],
    "S19": [final_read_stops_short],
    "S20": [append_ends_twice],
    "F1": [recovery_reads_before_enough_fences],
    "F2": [fence_not_durable, fence_lost_when_its_file_is_replaced],
    "F3": [add_accepted_after_the_fence],
    "F4": [inserted_while_fenced],
    "F5": [stored_after_it_was_denied],
    "F6": [denies_what_it_acknowledged, denies_after_a_restart],
    "F7": [recovery_reads_from_another_bookie],
    "F8": [ensembles_changed_in_recovery],
    "F9": [recovery_below_the_last_fragment],
    "F10": [lac_beyond_the_end],
    "F11": [ack_long_after_the_fence],
    "F12": [recoveries_lose_an_ack],
    "F13": [closed_without_enough_answers],
    "F14": [wrong_key_accepted, wrong_key_stored],
    "F15": [recovery_reports_another_end],
    "F16": [opening_a_ledger_fences_it, opening_a_ledger_changes_metadata],
    "F17": [bookie_deletes_an_open_ledger],
    "F18": [closed_below_a_copy, closed_without_the_answer_of_a_well_bookie],
    "F19": [closed_below_a_header, closed_below_a_sealed_lac],
    "F21": [convicts_an_honest_bookie],
    "M1": [explicit_gap, new_id_refused],
    "M2": [force_without_the_data],
    "M3": [deferred_ensemble_changes],
    "M4": [ack_that_would_not_survive],
    "M5": [one_rack],
    "M6": [one_rack_in_the_metadata],
    "M7": [replacement_lacks_copies],
    "M10": [ack_after_delete],
    "L3": [append_never_ends],
    "L4": [quorum_but_no_ack],
    "L8": [poll_not_answered],
    "L9": [not_enough_bookies_although_all_are_well],
}
CHECKED_ELSEWHERE = (
    "A8",
    "I1",
    "I2",
    "I3",
    "I7",
    "I8",
    "I9",
    "I14",
    "I16",
    "I18",
    "I27",
    "I28",
    "I29",
    "M8",
    "M11",
    "L1",
    "L2",
    "L5",
    "L6",
    "L7",
    "L10",
    "L11",
    "L12",
    "L13",
    "L14",
)
"""These are checked where a life starts a bookie, waits with a deadline or has a stranger; mutants show that they can
be violated."""


@pytest.mark.parametrize(
    ("invariant", "scenario"),
    [(name, scenario) for name, scenarios in BAD.items() for scenario in scenarios],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_bad_history_violates_its_invariant(invariant: str, scenario: object) -> None:
    assert callable(scenario)
    assert invariant in scenario().found


def test_a_bookie_that_nobody_could_know_yet_need_not_answer() -> None:
    h = closed_without_the_answer_of_one_that_came_back()
    assert h.judge.facts.bookie("b3").listed_at > 0
    assert "F18" not in h.found


def test_a_bookie_whose_registration_is_on_its_way_need_not_answer() -> None:
    assert "F18" not in closed_without_the_answer_of_one_that_came_back_just_now().found


def test_a_reader_is_right_who_could_not_know_of_an_ensemble_change() -> None:
    assert "S18" not in absent_in_an_ensemble_that_was_replaced(Pace(late_chance=0.5, late_s=2.0)).found


def test_every_invariant_has_a_bad_history_or_a_reason() -> None:
    assert sorted([*BAD, *CHECKED_ELSEWHERE]) == sorted(INVARIANTS)
