"""Bugs of quotas, turns and the audit trail."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_TURNSTILE = "tests/bookie/service/test_rate_limiter.py::"
_TRAIL = "tests/cli/security/test_audit_writer.py::"
_LOG = "tests/cli/audit_trail/test_log.py::"

MUTANTS = (
    TestMutant(
        "quota-holds-recovery",
        "recovery adds wait for the rate of their namespace, or are refused where it is full",
        edited(("buckram.bookie.service.rate_limiter:RateLimiter._look", "if is_urgent(run):", "if False:")),
        (_TURNSTILE + "test_clients_that_know_no_quotas_are_told_that_they_may_not",),
    ),
    TestMutant(
        "quota-unauthorized-to-ours",
        "our clients get UNAUTHORIZED for a full namespace",
        edited(("buckram.bookie.service.rate_limiter:RateLimiter._refuse", "said is not None and", "said is None and")),
        (_TURNSTILE + "test_a_full_namespace_is_refused_by_name_and_amount_until_something_is_deleted",),
    ),
    TestMutant(
        "shares-exceed-the-quota",
        "every bookie gives a namespace the whole rate while less than that is asked for",
        edited(("buckram.core.tenants.pacing:share_of", "wanted + (quota - total) / bookies", "quota")),
        ("tests/core/tenants/test_rates.py::test_shares_make_up_the_quota",),
    ),
    TestMutant(
        "nobody-gives-way",
        "a namespace that uses much goes on at full speed while a small one waits",
        edited(
            (
                "buckram.bookie.service.pacing:TenantPacer._look",
                "self._headroom.look(now, elapsed, seen, took_s)",
                "pass",
            )
        ),
        ("tests/bookie/service/test_pacing.py::test_a_large_one_is_paced_while_a_small_one_waits_and_loses_nothing",),
    ),
    TestMutant(
        "flight-without-limit",
        "a namespace that competes fills the disk's queue",
        edited(
            (
                "buckram.bookie.service.rate_limiter:RateLimiter._has_room",
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
        ("tests/core/wire/test_client_protocol.py::test_an_add_has_time_while_those_before_it_are_answered",),
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
        edited(
            ("buckram.bookie.service.metadata.key_session:KeySession._children", "if rules is None or", "if True or")
        ),
        ("tests/bookie/service/security/test_entry_access.py::test_who_may_use_one_stream_sees_and_reads_no_other",),
    ),
    TestMutant(
        "trail-forgets",
        "events are dropped when the trail cannot be written",
        edited(
            (
                "buckram.cli.security.audit_writer:AuditWriter.write",
                "await self._publish(events)",
                "self._events.written(events); await self._publish(events)",
            )
        ),
        (_TRAIL + "test_what_cannot_be_written_waits_and_what_is_dropped_is_counted",),
    ),
    TestMutant(
        "quota-absent-is-nobodys",
        "a ledger whose id was read before it existed counts for nobody",
        edited(
            (
                "buckram.bookie.service.security.entry_access:EntryAccess.right",
                "if owner is ABSENT and not looked and needed & APPEND:",
                "if False:",
            )
        ),
        (
            "tests/bookie/service/security/test_ledger_owners.py::test_who_read_an_id_before_it_had_a_ledger_does_not_make_it_nobodys",
        ),
    ),
    TestMutant(
        "trail-stays-gone",
        "the audit trail is prepared once, whatever becomes of its stream",
        edited(("buckram.cli.security.audit_writer:AuditWriter.run", "self._prepared = False", "pass")),
        (_TRAIL + "test_a_trail_that_is_gone_is_made_anew",),
    ),
    TestMutant(
        "refusals-without-limit",
        "every refusal is an event, so that whoever is refused often fills what a bookie keeps for them",
        edited(
            (
                "buckram.bookie.accounting.audit_queue:AuditLog.refuse",
                "if self._refusals.noted(",
                "if True or self._refusals.noted(",
            )
        ),
        (_LOG + "test_sixty_thousand_refusals_displace_no_deed_and_are_all_counted",),
    ),
    TestMutant(
        "refusals-with-deeds",
        "refusals take the room of deeds",
        edited(
            (
                "buckram.bookie.accounting.audit_queue:AuditLog.add",
                "self._count[_DEED] >= self._most",
                "len(self) >= self._most",
            )
        ),
        (_LOG + "test_refusals_of_many_principals_fill_their_own_room_only_and_are_all_counted",),
    ),
    TestMutant(
        "refusals-uncounted",
        "refusals for which there is no room are forgotten",
        edited(("buckram.core.tenants.audit_trail:Refusals.noted", "[kind] += 1", "[kind] += room")),
        (_LOG + "test_refusals_of_many_principals_fill_their_own_room_only_and_are_all_counted",),
    ),
    TestMutant(
        "deeds-uncounted",
        "deeds that are dropped are not counted",
        edited(("buckram.bookie.accounting.audit_queue:AuditLog.add", "self._lost += 1", "pass")),
        (_LOG + "test_deeds_beyond_their_room_are_counted_and_the_number_is_an_event",),
    ),
    TestMutant(
        "refusals-unseen",
        "what the gate refuses is not noted",
        edited(
            (
                "buckram.bookie.service.metadata.key_session:KeySession.carry_out",
                "if (noting := self._shared.noting) is not None:",
                "if (noting := None) is not None:",
            )
        ),
        (
            "tests/security/test_gate_noted.py::test_a_uid_of_another_stream",
            "tests/security/test_gate_noted.py::test_a_quota",
            "tests/security/test_gate_noted.py::test_a_bound",
        ),
    ),
    TestMutant(
        "trail-obeys",
        "a key with line breaks or escape codes is shown as it is",
        edited(("buckram.core.tenants.audit_trail:_shown", "if char.isprintable() else", "if True else")),
        ("tests/cli/security/test_audit.py::test_nothing_that_a_key_is_called_forges_a_line_or_reaches_a_terminal",),
    ),
    TestMutant(
        "page-obeys",
        "the gateway's answers have characters that terminals obey",
        edited(("buckram.serve.http.problems:json_answer", "not text.isascii() or", "not text.isascii() and not")),
        ("tests/serve/gateway/test_pages.py::test_the_audit_trail_has_no_character_that_a_terminal_obeys",),
    ),
    TestMutant(
        "event-of-any-size",
        "an event is as large as the key that it names",
        edited(("buckram.core.tenants.audit_trail:bounded", "if len(text) <= MOST_TEXT and", "if True or")),
        ("tests/core/tenants/test_audit_chain.py::test_an_event_is_bounded_and_ascii_and_comes_back",),
    ),
    TestMutant(
        "chain-without-digests",
        "a changed event is taken for whole",
        edited(("buckram.core.tenants.audit_trail:ChainCheck.see", "event.before != chain.digest", "False")),
        ("tests/cli/security/test_audit.py::test_the_trail_is_verified",),
    ),
    TestMutant(
        "chain-with-holes",
        "a missing event is not seen",
        edited(("buckram.core.tenants.audit_trail:ChainCheck.see", "event.number > chain.last + 1", "False")),
        ("tests/core/tenants/test_audit_chain.py::test_an_event_that_is_missing_is_seen",),
    ),
    TestMutant(
        "note-twice",
        "a note of another process gets a place in the chain each time that it is read",
        edited(("buckram.bookie.accounting.audit_queue:AuditLog.take", "key in self._taken or", "")),
        (_TRAIL + "test_a_batch_whose_answer_was_lost_is_written_again_as_it_was",),
    ),
    TestMutant(
        "sink-forgets",
        "events that a sink does not take are not tried again",
        edited(
            ("buckram.cli.security.audit_writer:SinkQueue.write", "self._waiting.extendleft(reversed(lines))", "pass")
        ),
        ("tests/cli/security/test_audit_sinks.py::test_a_sink_that_fails_is_told_once_and_loses_nothing",),
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
