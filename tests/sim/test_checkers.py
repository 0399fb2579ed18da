"""The checkers are checked: each of these histories breaks one rule and must be found out; the good ones must not."""

from __future__ import annotations

import pytest
from tests.sim.bad_disks import (
    another_length_on_a_disk,
    changed_with_one_copy_on_disk,
    closed_with_one_copy_on_disk,
    denies_after_it_came_back,
    empty_member_counts_again,
    fence_lost_with_its_file,
    on_no_disk_at_the_end,
    spoiled_on_a_whole_disk,
    spoiled_on_all_disks,
)
from tests.sim.bad_peers import (
    absent_though_one_is_silent,
    ack_after_delete,
    ack_long_after_the_fence,
    ack_that_would_not_survive,
    add_accepted_after_the_fence,
    append_never_ends,
    bad_bytes_reach_a_reader,
    closed_by_guessing,
    collects_an_open_ledger,
    deferred_ensemble_changes,
    denied_and_then_gained,
    denies_what_it_acknowledged,
    ends_twice,
    ensembles_published_in_recovery,
    explicit_gap,
    fence_not_durable,
    final_read_stops_short,
    force_without_the_data,
    gives_up_too_soon,
    inserted_while_fenced,
    lac_beyond_the_end,
    loser_reports_its_own,
    new_id_refused,
    one_rack,
    one_rack_in_the_record,
    open_fences,
    open_writes_metadata,
    poll_without_end,
    quorum_but_no_ack,
    read_above_the_lac,
    read_before_coverage,
    read_beyond_the_end,
    reads_disagree,
    recoveries_lose_an_ack,
    recovery_below_the_last_fragment,
    recovery_reads_elsewhere,
    replaced_without_copies,
    wrong_key_accepted,
    wrong_key_stored,
)
from tests.sim.bad_recoveries import (
    acknowledged_by_a_liar_alone,
    closed_although_a_copy_came,
    closed_before_a_member_was_heard,
    closed_below_a_header,
    closed_below_a_sealed_lac,
    closed_with_a_liar_alone,
    convicts_an_honest_bookie,
    lied_about_and_cut_off,
)
from tests.sim.bad_writers import (
    ack_after_close,
    ack_never_told,
    acks_out_of_order,
    another_length_stored,
    another_payload_stored,
    closed_below_an_ack,
    closed_beyond_what_was_sent,
    closed_twice,
    closed_with_one_copy,
    copies_outside_the_record,
    fragment_below_an_ack,
    guessed_version,
    lac_falls,
    moved_away_from_its_copies,
    one_copy_of_two,
    reopened,
    sent_as_something_else,
    the_same_member_twice,
    wrong_length_at_close,
    wrong_length_in_a_header,
)
from tests.sim.history import LEDGER, History, good

from buckram.errors import Code
from buckram.sim.engine.checkers.report import INVARIANTS


def test_a_good_history_has_no_violation() -> None:
    h = good()
    assert h.report.violations == []
    assert h.report.evaluated["S4"] == 3
    assert h.report.evaluated["S19"] == 1


def test_a_good_recovery_has_no_violation() -> None:
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
    "S1": [closed_below_an_ack, ack_after_close, lied_about_and_cut_off], "S2": [closed_twice, reopened],
    "S3": [moved_away_from_its_copies, on_no_disk_at_the_end],
    "S5": [spoiled_on_all_disks, closed_with_one_copy_on_disk, closed_with_one_copy, closed_with_a_liar_alone],
    "S4": [one_copy_of_two, copies_outside_the_record, acknowledged_by_a_liar_alone, empty_member_counts_again],
    "S6": [another_payload_stored, sent_as_something_else],
    "S7": [another_length_stored, another_length_on_a_disk, spoiled_on_a_whole_disk],
    "S8": [acks_out_of_order, ack_never_told], "S9": [closed_beyond_what_was_sent],
    "S10": [the_same_member_twice, fragment_below_an_ack], "S11": [guessed_version],
    "S12": [lac_falls, moved_away_from_its_copies, changed_with_one_copy_on_disk],
    "S13": [wrong_length_at_close, wrong_length_in_a_header],
    "S14": [read_beyond_the_end], "S15": [reads_disagree], "S16": [read_above_the_lac],
    "S17": [bad_bytes_reach_a_reader], "S18": [absent_though_one_is_silent], "S19": [final_read_stops_short],
    "S20": [ends_twice], "F1": [read_before_coverage], "F2": [fence_not_durable, fence_lost_with_its_file],
    "F3": [add_accepted_after_the_fence],
    "F4": [inserted_while_fenced], "F5": [denied_and_then_gained],
    "F6": [denies_what_it_acknowledged, denies_after_it_came_back],
    "F7": [recovery_reads_elsewhere], "F8": [ensembles_published_in_recovery], "F9": [recovery_below_the_last_fragment],
    "F10": [lac_beyond_the_end], "F11": [ack_long_after_the_fence], "F12": [recoveries_lose_an_ack],
    "F13": [closed_by_guessing], "F14": [wrong_key_accepted, wrong_key_stored], "F15": [loser_reports_its_own],
    "F16": [open_fences, open_writes_metadata], "F17": [collects_an_open_ledger],
    "F18": [closed_although_a_copy_came, closed_before_a_member_was_heard],
    "F19": [closed_below_a_header, closed_below_a_sealed_lac], "F21": [convicts_an_honest_bookie],
    "M1": [explicit_gap, new_id_refused],
    "M2": [force_without_the_data], "M3": [deferred_ensemble_changes], "M4": [ack_that_would_not_survive],
    "M5": [one_rack], "M6": [one_rack_in_the_record], "M7": [replaced_without_copies], "M10": [ack_after_delete],
    "L3": [append_never_ends], "L4": [quorum_but_no_ack], "L8": [poll_without_end], "L9": [gives_up_too_soon],
}  # fmt: skip
JUDGED_ELSEWHERE = (
    "I1", "I2", "I3", "I7", "I8", "I9", "I14", "I16", "I18", "I27", "M8", "M11",
    "L1", "L2", "L5", "L6", "L7", "L10", "L11", "L12", "L13", "L14",
)  # fmt: skip


@pytest.mark.parametrize(
    ("invariant", "story"),
    [(name, story) for name, stories in BAD.items() for story in stories],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_bad_history_is_found_out(invariant: str, story: object) -> None:
    assert callable(story)
    assert invariant in story().found


def test_every_invariant_has_a_bad_history_or_a_reason() -> None:
    assert sorted([*BAD, *JUDGED_ELSEWHERE]) == sorted(INVARIANTS)
