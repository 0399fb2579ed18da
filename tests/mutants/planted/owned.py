"""Bugs of servers that do for a stream what its metadata say, although a tenant writes these."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_OWNED = "tests/streams/shared/test_ownership.py::"
_DELETES = _OWNED + "test_nobody_deletes_a_ledger_that_is_another_streams"

MUTANTS = (
    TestMutant(
        "owned-by-anybody",
        "a ledger counts as a stream's own whatever its record says",
        edited(
            (
                "buckram.streams.shared.ownership:is_own",
                "    except NoSuchKey:\n        return False\n",
                "    except NoSuchKey:\n        return True\n",
            )
        ),
        (_OWNED + "test_nobody_reads_a_segment_that_is_another_streams", f"{_DELETES}[garbage]"),
    ),
    TestMutant(
        "owned-fenced-before-it-is-asked",
        "a segment is fenced and closed before anybody asks whose ledger it is",
        edited(
            (
                "buckram.streams.shared.ownership:_recovered",
                "await check_own(client, stream, ledger, await client.metadata(ledger))",
                "pass",
            )
        ),
        (
            _OWNED + "test_the_one_who_opens_a_stream_fences_no_writer_of_another",
            _OWNED + "test_objects_read_fence_and_delete_only_ledgers_of_their_index",
        ),
    ),
    TestMutant(
        "owned-by-name-alone",
        "a ledger of a stream that was deleted counts as that of the one that has its name now",
        edited(("buckram.core.streams.names:is_made_for", "owner is None or owner[1] != stream.uid", "owner is None")),
        ("tests/core/streams/test_owner.py::test_whose_a_ledger_is",),
    ),
    TestMutant(
        "owned-told-to-nobody",
        "a server that comes upon another stream's ledger leaves no note of it",
        edited(
            (
                "buckram.streams.shared.ownership:report_foreign",
                "if await leave_foreign_note(store, note):",
                "if False:",
            )
        ),
        (_OWNED + "test_what_is_found_is_told_once_an_hour_and_taken_back_by_a_check",),
    ),
    TestMutant(
        "owned-files-of-anybody",
        "files of history are read and deleted wherever a row says that they are",
        edited(("buckram.core.streams.external.history:is_directory_of", "directory.endswith(own)", "True")),
        (_OWNED + "test_a_row_that_names_files_of_another_stream_does_nothing_to_them",),
    ),
    TestMutant(
        "owned-forgotten-with-its-key",
        "a fork forgets a ledger that it lets go before it knows whether it is the last one",
        edited(
            (
                "buckram.streams.shared.shared_ledgers:release",
                'return await _remove(streams, f"{await streams.metadata.ledger_key(ledger)}/{uid}")',
                "await forget(streams, uid, ledger)\n"
                '    return await _remove(streams, f"{await streams.metadata.ledger_key(ledger)}/{uid}")',
            )
        ),
        (_OWNED + "test_the_last_fork_deletes_a_shared_ledger_also_if_it_was_stopped_in_between",),
    ),
)
