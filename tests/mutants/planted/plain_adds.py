"""Bugs of the way that a chunk's plain adds take: what is plain, what is paid, what a failure leaves."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

PLAIN = "buckram.core.storage.plain_adds"
TAKEN = "tests/bookie/service/entries/test_taken_adds.py"
GATED = "tests/bookie/service/test_gated_chunks.py"
ALONE = "tests/core/storage/test_plain_adds.py"
REASON = f"{ALONE}::test_each_reason_stops_it_at_the_run"

MUTANTS = (
    TestMutant(
        "plain-although-fenced",
        "adds of a fenced ledger are taken with the others",
        edited((f"{PLAIN}:_plain_index", "or record.fenced", "")),
        (f"{REASON}[fenced-False]",),
    ),
    TestMutant(
        "plain-although-in-limbo",
        "adds of a ledger in limbo are taken without a look at metadata",
        edited((f"{PLAIN}:_plain_index", "or record.limbo", "")),
        (f"{REASON}[limbo-True]",),
    ),
    TestMutant(
        "plain-although-polled",
        "whoever waits for a ledger is not woken by an add that is taken with others",
        edited((f"{PLAIN}:_plain_index", "ledger_id in waiting or", "")),
        (f"{REASON}[polled-False]",),
    ),
    TestMutant(
        "plain-although-refused",
        "adds pass a gate that does not let their ledger pass",
        edited((f"{PLAIN}:_plain_index", "allowed is not None and", "False and")),
        (f"{REASON}[refused-False]",),
    ),
    TestMutant(
        "plain-although-sent-again",
        "an entry that is there already is taken as a new one",
        edited((f"{PLAIN}:_plain_index", "or entry <= record.last", "")),
        (f"{ALONE}::test_an_id_that_is_not_above_the_last_stops_it[False]",),
    ),
    TestMutant(
        "plain-touched-without-memory",
        "a record says that it has an entry for which its index had no memory",
        edited(
            (f"{PLAIN}:take_adds", "except MemoryError:\n            break", "except MemoryError:\n            pass")
        ),
        (f"{ALONE}::test_without_memory_for_its_index_a_run_is_untouched_and_the_others_are_whole[python-False]",),
    ),
    TestMutant(
        "plain-acknowledged-in-spite-of-a-failure",
        "prepared replies say OK although the commit failed",
        edited(("buckram.bookie.storage.store:TakenAdds.answer", "code is Code.OK", "True")),
        (f"{TAKEN}::test_a_prepared_reply_gets_the_code_of_the_failure[2]",),
    ),
    TestMutant(
        "plain-leaves-a-block",
        "a chunk of which nothing was taken leaves an empty block, for which others wait",
        edited(("buckram.bookie.storage.store:Store.take_adds", "commit.end_slice()", "pass")),
        (f"{TAKEN}::test_where_nothing_is_taken_no_block_is_left_open",),
    ),
    TestMutant(
        "plain-although-nothing-is-taken",
        "a store that takes no adds takes chunks of them",
        edited(("buckram.bookie.service.entries.adds:AddPath.take", "not store.is_writable or", "")),
        (f"{TAKEN}::test_a_store_that_takes_nothing_refuses_the_usual_way",),
    ),
    TestMutant(
        "plain-before-what-came-before",
        "adds are taken before the requests in front of them are carried out",
        edited(
            ("buckram.bookie.service.connections.session:Session.take_chunk", "if items:", "if False:"),
        ),
        (f"{TAKEN}::test_other_requests_keep_their_place_among_adds[2]",),
    ),
    TestMutant(
        "plain-for-nothing",
        "what is taken as a chunk is not paid from a namespace's credit",
        edited(("buckram.bookie.service.rate_limiter:RateLimiter.take", "tenant.credit -= taken.size", "pass")),
        (f"{GATED}::test_adds_of_a_namespace_are_taken_together_and_counted",),
    ),
    TestMutant(
        "plain-never-counted",
        "a connection that sent adds before quotas began sends uncounted ones for ever",
        edited(("buckram.bookie.service.rate_limiter:RateLimiter.take", "purse is UNCOUNTED and", "False and")),
        (f"{GATED}::test_what_nobody_counted_before_is_counted_once_quotas_begin",),
    ),
    TestMutant(
        "plain-with-old-grants",
        "a right that was taken back lets chunks pass",
        edited(
            (
                "buckram.bookie.service.security.entry_access:ConnectionAccess.take",
                "or self._version != self._access.version",
                "",
            )
        ),
        (f"{GATED}::test_changed_grants_end_it",),
    ),
    TestMutant(
        "plain-for-ever",
        "a right that holds for a second lets chunks pass for ever",
        edited(
            (
                "buckram.bookie.service.security.entry_access:ConnectionAccess._remember",
                "self._plain_until = min(self._plain_until, known.until)",
                "pass",
            )
        ),
        (f"{GATED}::test_a_right_that_does_not_last_ends_by_itself",),
    ),
    TestMutant(
        "plain-although-traced",
        "an add that was announced as part of a trace has no span",
        edited(
            (
                "buckram.bookie.service.entries.traced_adds:TracedAdds._comes_alone",
                "session in self._expected",
                "False",
            ),
        ),
        (f"{GATED}::test_an_announced_add_comes_as_a_run_and_has_its_span",),
    ),
)
