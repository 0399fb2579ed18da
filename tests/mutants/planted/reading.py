"""Bugs of reads: long polls, ranges of entries, and local reads from files of bookies on the same machine."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

MUTANTS = (
    TestMutant(
        "poll-waits-anew",
        "a long poll that waited for a look at metadata waits its whole timeout once more",
        edited(
            (
                "buckram.bookie.service.security.entry_access:_after",
                "round(waited_s * 1000)",
                "0",
            )
        ),
        (
            "tests/bookie/service/security/test_ledger_owners.py"
            "::test_a_long_poll_ends_when_its_client_expects_it_also_if_metadata_is_late",
        ),
    ),
    TestMutant(
        "poll-refused-undecided",
        "a long poll is refused while the ledger's first adds wait for a look at metadata",
        edited(
            (
                "buckram.bookie.service.entries.reads:ReadPath._arrive_poll",
                "request.ledger_id in self._undecided",
                "False",
            )
        ),
        (
            "tests/bookie/service/connections/test_long_poll.py::test_a_ledger_whose_first_add_waits_for_metadata_is_polled",
        ),
    ),
    TestMutant(
        "range-not-filled",
        "a range ends at its planned end, although more entries fit",
        edited(
            (
                "buckram.bookie.storage.reading.lookup:Lookup._read_on",
                "elif ended or ",
                "elif True or ",
            )
        ),
        ("tests/bookie/storage/test_store.py::test_a_range_has_exactly_as_many_entries_as_fit",),
    ),
    TestMutant(
        "local-given-back-early",
        "buffers are returned before their content is used",
        edited(
            (
                "buckram.client.read.local:LocalReads._read",
                "found: list[T] = []\n",
                "found: list[T] = []\n            directory.give_back(pieces)\n",
            )
        ),
        ("tests/client/read/test_local_reads.py::test_every_size_comes_as_from_bookies[large]",),
    ),
    TestMutant(
        "neighbour-identity",
        "a directory of another machine is read",
        edited(
            (
                "buckram.runtime.disk.neighbours:Neighbours.open",
                "identity_of(directory) == identity and ",
                "",
            )
        ),
        ("tests/runtime/disk/test_neighbours.py::test_only_the_directory_that_was_meant_is_opened",),
    ),
    TestMutant(
        "neighbour-empty-identity",
        "a bookie without an identity is read",
        edited(
            (
                "buckram.runtime.disk.neighbours:Neighbours.open",
                'identity != "" and ',
                "",
            )
        ),
        ("tests/runtime/disk/test_neighbours.py::test_only_the_directory_that_was_meant_is_opened",),
    ),
    TestMutant(
        "neighbour-path",
        "a name may lead out of the directory",
        edited(
            (
                "buckram.runtime.disk.neighbours:NeighbourDirectory._open",
                "if os.sep in name:",
                "if False:",
            )
        ),
        ("tests/runtime/disk/test_neighbours.py::test_what_is_no_log_file_is_refused_and_nobody_waits",),
    ),
    TestMutant(
        "neighbour-fd-leak",
        "open files are not closed after an error",
        edited(
            (
                "buckram.runtime.disk.neighbours:NeighbourDirectory._open",
                "os.close(file)\n",
                "",
            )
        ),
        ("tests/runtime/disk/test_neighbours.py::test_what_is_no_log_file_is_refused_and_nobody_waits",),
    ),
    TestMutant(
        "neighbour-align",
        "direct reads give the bytes of the unit's beginning",
        edited(
            (
                "buckram.runtime.disk.neighbours:NeighbourDirectory._piece",
                "return FileData(data, at + before)",
                "return FileData(data, at)",
            )
        ),
        ("tests/client/read/test_local_reads.py::test_every_size_comes_as_from_bookies[large]",),
    ),
    TestMutant(
        "located-skip",
        "frames that must be skipped in the middle are not skipped",
        edited(
            (
                "buckram.core.wire.located:extended",
                "if after.skip or ",
                "if ",
            )
        ),
        ("tests/bookie/storage/test_located.py::test_neighbours_are_one_extent_up_to_a_limit",),
    ),
    TestMutant(
        "located-gap",
        "extents with a gap are joined",
        edited(
            (
                "buckram.core.wire.located:extended",
                "before.offset + before.length != after.offset",
                "before.offset + before.length > after.offset",
            )
        ),
        ("tests/client/read/test_local_reads.py::test_every_size_comes_as_from_bookies[mixed]",),
    ),
)
