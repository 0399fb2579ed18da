"""Bugs of quotas, turns and the audit trail."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_TURNSTILE = "tests/bookie/service/test_turnstile.py::"
_TRAIL = "tests/audit/test_writing.py::"

MUTANTS = (
    TestMutant(
        "quota-holds-recovery",
        "recovery adds wait for the rate of their namespace, or are refused where it is full",
        edited(("buckram.bookie.service.turnstile:Turnstile._look", "if is_urgent(run):", "if False:")),
        (_TURNSTILE + "test_clients_that_know_no_quotas_are_told_that_they_may_not",),
    ),
    TestMutant(
        "quota-unauthorized-to-ours",
        "our clients get UNAUTHORIZED for a full namespace",
        edited(("buckram.bookie.service.turnstile:Turnstile._refuse", "said is not None and", "said is None and")),
        (_TURNSTILE + "test_a_full_namespace_is_refused_by_name_and_amount_until_something_is_deleted",),
    ),
    TestMutant(
        "shares-exceed-the-quota",
        "every bookie gives a namespace the whole rate while less than that is asked for",
        edited(("buckram.core.tenants.rates:share_of", "wanted + (quota - total) / bookies", "quota")),
        ("tests/core/tenants/test_rates.py::test_shares_make_up_the_quota",),
    ),
    TestMutant(
        "nobody-gives-way",
        "a namespace that uses much goes on at full speed while a small one waits",
        edited(
            (
                "buckram.bookie.service.giving_way:GivingWay._look",
                "self._headroom.look(now, elapsed, seen, took_s)",
                "pass",
            )
        ),
        (
            "tests/bookie/service/test_giving_way.py::test_a_large_one_is_paced_while_a_small_one_waits_and_loses_nothing",
        ),
    ),
    TestMutant(
        "flight-without-limit",
        "a namespace that competes fills the disk's queue",
        edited(
            (
                "buckram.bookie.service.turnstile:Turnstile._has_room",
                "return tenant.in_flight < FLIGHT_BYTES or now >= self._mixed_until",
                "return True",
            )
        ),
        (_TURNSTILE + "test_of_two_that_compete_neither_fills_the_disks_queue",),
    ),
    TestMutant(
        "impatient-lane",
        "an add that a bookie holds back times out although those before it are answered",
        edited(("buckram.core.wire.acks:AckMatcher.look", "self._patient_until = now + patience_s", "pass")),
        ("tests/core/wire/test_client.py::test_an_add_has_time_while_those_before_it_are_answered",),
    ),
    TestMutant(
        "trail-by-pattern",
        "a grant on all namespaces gives the audit trail",
        edited(
            ("buckram.core.security.acl:Acl._granting", 'if name.partition("/")[0] != SERVERS:', "if True:"),
            ("buckram.core.security.acl:Acl.within", "if namespace == SERVERS:", "if False:"),
        ),
        (_TRAIL + "test_only_servers_write_there_and_a_pattern_does_not_give_it_to_readers",),
    ),
    TestMutant(
        "stream-for-its-namespace",
        "a grant on one stream is one on all streams of the namespace",
        edited(("buckram.core.security.acl:Grant.covers", "fnmatchcase(stream, rest)", "True")),
        ("tests/core/security/test_acl.py::test_a_grant_covers_a_namespace_with_all_in_it_or_streams",),
    ),
    TestMutant(
        "names-of-other-streams",
        "whoever may use one stream of a namespace is shown the names of all",
        edited(("buckram.bookie.service.key_session:KeySession._children", "if rules is None or", "if True or")),
        ("tests/bookie/service/test_access.py::test_who_may_use_one_stream_sees_and_reads_no_other",),
    ),
    TestMutant(
        "trail-forgets",
        "events are dropped when the trail cannot be written",
        edited(
            (
                "buckram.audit.writing:AuditWriter.write",
                "await self._publish([*left_events, *events])",
                "self._events.written(events); await self._publish([*left_events, *events])",
            )
        ),
        (_TRAIL + "test_what_cannot_be_written_waits_and_what_is_dropped_is_counted",),
    ),
    TestMutant(
        "quota-absent-is-nobodys",
        "a ledger whose id was read before it existed counts for nobody",
        edited(
            (
                "buckram.bookie.service.access:EntryAccess.right",
                "if owner is ABSENT and not looked and needed & APPEND:",
                "if False:",
            )
        ),
        ("tests/bookie/service/test_owners.py::test_who_read_an_id_before_it_had_a_ledger_does_not_make_it_nobodys",),
    ),
    TestMutant(
        "trail-stays-gone",
        "the audit trail is prepared once, whatever becomes of its stream",
        edited(("buckram.audit.writing:AuditWriter.run", "self._prepared = False", "pass")),
        (_TRAIL + "test_a_trail_that_is_gone_is_made_anew",),
    ),
    TestMutant(
        "denial-by-name-only",
        "whoever is denied objects reads their log at a bookie, with all their names and places",
        edited(
            ("buckram.core.security.acl:Acl._denying", "(one.covers(name) or one.is_within(name))", "one.covers(name)")
        ),
        (
            "tests/core/security/test_denials.py::test_denied_objects_are_holes_and_close_the_log_of_all_names_to_bookies",
        ),
    ),
    TestMutant(
        "grant-wins-over-denial",
        "a denial is kept and shown, and takes nothing from what was granted",
        edited(("buckram.core.security.acl:Acl.allowed", "if self.denials and granted", "if False")),
        (
            "tests/core/security/test_denials.py::test_a_denial_of_one_stream_takes_that_one_and_of_a_namespace_everything",
        ),
    ),
    TestMutant(
        "denials-for-old-releases",
        "a release that knows no denials reads their record, and grants what is denied",
        edited(("buckram.core.security.acl:Acl.encode", '"version": ACL_VERSION', '"version": 1')),
        ("tests/core/security/test_denials.py::test_a_record_with_denials_is_none_that_an_older_release_reads",),
    ),
    TestMutant(
        "holes-are-listed",
        "a page of objects that one may see has those that are denied",
        edited(
            (
                "buckram.core.security.object_names:NameRange.has",
                "and not any(hole.has(name) for hole in self.holes)",
                "",
            )
        ),
        (
            "tests/core/security/test_denials.py::test_denied_objects_are_holes_and_close_the_log_of_all_names_to_bookies",
        ),
    ),
)
