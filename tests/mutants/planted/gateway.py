"""Bugs of the gateway: who may ask, whom a client is sent to, what is kept, what is bounded."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_ACCESS = "tests/serve/gateway/shared/test_authentication.py::"
_OBJECTS = "tests/serve/gateway/objects/test_object_pages.py::"
_RECORDS = "tests/serve/gateway/streams/test_record_pages.py::"
_REMOVALS = "tests/serve/gateway/objects/test_removal_pages.py::"
_SERVER = "tests/serve/gateway/test_server.py::"
_TAILS = "tests/serve/gateway/streams/test_tails.py::"
_UPLOADS = "tests/serve/gateway/objects/test_upload_pages.py::"
_WRITERS = "tests/serve/gateway/streams/test_writers.py::"

MUTANTS = (
    TestMutant(
        "gateway-no-csrf",
        "a change with a browser's cookie needs no CSRF token",
        edited(("buckram.serve.gateway.shared.authentication:Access._principal", "if operation.changes:", "if False:")),
        (_ACCESS + "test_a_browser_logs_in_once",),
    ),
    TestMutant(
        "gateway-cookie-in-clear",
        "the cookie of a gateway with TLS may travel without",
        edited(
            (
                "buckram.serve.gateway.shared.authentication:Sessions.cookie",
                '[*words, "Secure"] if secure else words',
                "words",
            )
        ),
        (_ACCESS + "test_the_cookie_of_one_with_tls_is_for_tls_alone",),
    ),
    TestMutant(
        "gateway-session-outlives-token",
        "a session goes on after its token was revoked",
        edited(
            (
                "buckram.serve.gateway.shared.authentication:Access._principal",
                "self.tokens.why_over(session.token)",
                '""',
            )
        ),
        (_ACCESS + "test_a_session_ends_with_its_token_and_its_time",),
    ),
    TestMutant(
        "gateway-creates-for-writers",
        "who may append may create streams",
        edited(
            (
                "buckram.serve.gateway.streams.record_pages:RecordPages._append",
                'ask.require("create", str(name))',
                "pass",
            )
        ),
        (_ACCESS + "test_grants_decide_who_may_do_what",),
    ),
    TestMutant(
        "gateway-lease-is-believed",
        "a client is sent to the address that a lease says",
        edited(
            (
                "buckram.serve.gateway.shared.gateway_registry:Peers.url_of",
                "return await self.url_of_id(found[1])",
                "return await self.url_of_id(found[1]) or sign.partition(' at ')[2]",
            )
        ),
        (_WRITERS + "test_a_lease_sends_nobody_to_an_address_that_is_not_shown",),
    ),
    TestMutant(
        "gateway-key-for-any-request",
        "another request with a known Idempotency-Key gets the answer of the first",
        edited(
            (
                "buckram.serve.gateway.shared.idempotency:Repeats.once",
                "found.fingerprint.value() != fingerprint.value()",
                "found.fingerprint.value() == b''",
            )
        ),
        (_SERVER + "test_a_request_with_a_key_is_carried_out_once",),
    ),
    TestMutant(
        "gateway-unknown-outcome-forgotten",
        "an append whose outcome is unknown is done once more under its key",
        edited(
            (
                "buckram.serve.gateway.shared.idempotency:Repeats._done",
                ' or answer.headers.get(OUTCOME) == "unknown"',
                "",
            )
        ),
        (_WRITERS + "test_without_acknowledgement_in_time_the_outcome_is_unknown",),
    ),
    TestMutant(
        "gateway-serves-what-is-for-another",
        "a request for another process of a gateway, which knows its key, is carried out",
        edited(("buckram.serve.gateway.dispatch:Dispatcher._check_meant", "if meant != self._own_id:", "if False:")),
        (_SERVER + "test_a_request_is_for_one_process_if_it_says_so",),
    ),
    TestMutant(
        "gateway-adding-replaces",
        "who may only append puts objects in the place of others",
        edited(("buckram.serve.gateway.objects.object_calls:permitted", "Precondition(if_absent=True)", "asked")),
        (_OBJECTS + "test_every_operation_needs_its_permissions_on_the_prefix",),
    ),
    TestMutant(
        "gateway-part-of-any-upload",
        "a part goes into an upload of another object",
        edited(
            (
                "buckram.serve.gateway.objects.upload_pages:UploadPages._check_upload",
                "await objects.upload_name(upload) != ask.object",
                "await objects.upload_name(upload) is None",
            )
        ),
        (_UPLOADS + "test_a_part_of_another_upload_is_refused",),
    ),
    TestMutant(
        "gateway-removes-more-than-granted",
        "who may delete one object deletes all whose names begin so",
        edited(("buckram.serve.gateway.objects.removal_pages:_may", "names.has_all(prefix)", "names.has(prefix)")),
        (_REMOVALS + "test_it_takes_delete_on_all_such_names_and_shows_its_owner_how_far_it_is",),
    ),
    TestMutant(
        "gateway-job-of-anybody",
        "whoever knows the id of a job may cancel it",
        edited(("buckram.serve.operations.jobs:Jobs.one", "or owner not in (None, job.owner)", "")),
        (_REMOVALS + "test_it_takes_delete_on_all_such_names_and_shows_its_owner_how_far_it_is",),
    ),
    TestMutant(
        "gateway-compressed-arrow",
        "a body of Arrow may be compressed, and grow without limit",
        edited(
            ("buckram.serve.gateway.streams.arrow_bodies:_batches", "_is_compressed(bytes(message.metadata))", "False")
        ),
        (_RECORDS + "test_a_bad_body_says_where_it_is_bad",),
    ),
    TestMutant(
        "gateway-answer-not-counted",
        "an answer counts no more once it is made, however slowly it is taken",
        edited(
            (
                "buckram.serve.gateway.shared.memory_budget:PageAnswer.__init__",
                "self._held, self._stuck_s = held, stuck_s",
                "held.release(); self._held, self._stuck_s = held, stuck_s",
            )
        ),
        (_SERVER + "test_an_answer_counts_until_it_is_taken",),
    ),
    TestMutant(
        "gateway-ring-forgets-its-begin",
        "a tail that is behind the ring misses what was dropped from it",
        edited(("buckram.serve.gateway.streams.tails:Feed._publish", "self.begin = self._pieces[0].first", "pass")),
        (_TAILS + "test_who_is_behind_the_ring_reads_by_itself",),
    ),
    TestMutant(
        "gateway-gap-is-repeated",
        "a tail at a gap of offsets gets the records before it again",
        edited(("buckram.serve.gateway.streams.tails:Feed.piece", "if self._pieces[at].next > position", "if True")),
        (_TAILS + "test_offsets_may_have_gaps",),
    ),
    TestMutant(
        "gateway-events-went-back",
        "a follower goes on after an event whose record is another one now",
        edited(
            (
                "buckram.serve.gateway.streams.tails:start_after",
                "if max(last.epoch, FIRST_EPOCH) >= now.epoch:",
                "if True:",
            )
        ),
        ("tests/serve/gateway/test_event_ids.py::test_a_follower_is_told_that_the_stream_went_back",),
    ),
    TestMutant(
        "gateway-feed-never-ends",
        "a feed that failed with what nobody expected leaves its tails waiting",
        edited(
            (
                "buckram.serve.gateway.streams.tails:Feed._read",
                "except Exception as error:",
                "except BuckramError as error:",
            )
        ),
        (_TAILS + "test_a_feed_that_failed_with_anything_ends_its_tails_and_the_next_one_reads_anew",),
    ),
    TestMutant(
        "cut-body-is-another-request",
        "a repetition is told that its key came with another request where the first one's body was cut",
        edited(
            (
                "buckram.serve.gateway.shared.idempotency:Repeats.once",
                "if rest is not None and self._kept.get((who, key)) is not found:",
                "if False:",
            )
        ),
        (
            "tests/serve/gateway/shared/test_idempotency.py::"
            "test_a_repetition_of_a_request_whose_body_was_cut_is_sent_again",
        ),
    ),
)
