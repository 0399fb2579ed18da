"""Planted bugs of gateways: `python -m buckram.sim --gateways --mutants`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine import hunting
from simulator.engine.edits import edited
from simulator.gateways.plan import GatewaysPlan

_DISPATCH = "buckram.serve.gateway.dispatch:Dispatcher"
_REPEATS = "buckram.serve.gateway.shared.idempotency:Repeats"
_WRITERS = "buckram.serve.gateway.streams.writers:Writers"
_RECORDS = "buckram.serve.gateway.streams.record_pages:RecordPages"
_TAILS = "buckram.serve.gateway.streams.tails"
_FILES = "buckram.serve.webhdfs.files"
_BODY = "buckram.serve.http.body"
_OBJECTS = "buckram.serve.gateway.objects"
HUNG = ("hang a gateway", "stop a gateway", "hang a gateway", "kill a gateway")
"""Faults by which a stream goes from one gateway to another."""
TAKEN = ("hang a gateway", "expire a gateway", "hang a gateway", "cut off a gateway")
"""Faults by which it goes while a gateway lives that does not know."""
LOST = ("reset clients", "reset clients", "reset clients")


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[GatewaysPlan]):
    """A planted bug of gateways."""

    faults: tuple[str, ...] = ()
    """Faults of the mutant's lives, for bugs that show only under some faults; empty: those of each plan."""
    busy: str = ""
    """What the clients of the mutant's lives do most, a key of `GatewaysPlan.only`; empty: as drawn."""

    def suits(self, plan: GatewaysPlan) -> bool:
        if self.faults:
            plan.cluster.faults = list(self.faults)
        if self.busy:
            plan.only(self.busy)
        return True


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        # -- appends -----------------------------------------------------------------------------------
        Mutant(
            "key-done-twice",
            "once",
            "a repeated Idempotency-Key is carried out again",
            edited((f"{_REPEATS}._find", "return self._kept.get(at)", "return None")),
            busy="keys",
        ),
        Mutant(
            "key-of-another-request",
            "key",
            "another request with a known key gets the answer of the first",
            edited((f"{_REPEATS}.once", "found.fingerprint.value() != fingerprint.value()", "False")),
            busy="keys",
        ),
        Mutant(
            "key-forgets-doubt",
            "once, refused",
            "an append whose outcome is unknown is carried out again under its key",
            edited((f"{_REPEATS}._done", ' or answer.headers.get(OUTCOME) == "unknown"', "")),
            300,
            faults=(*HUNG, "cut off a gateway"),
            busy="keys",
        ),
        Mutant(
            "other-gateway-serves",
            "once",
            "a request for another process, which knows its key, is carried out",
            edited((f"{_DISPATCH}._check_meant", "if meant != self._own_id:", "if False:")),
            200,
            faults=("kill a gateway", "reset clients", "kill a gateway", "kill a gateway"),
            busy="keys",
        ),
        Mutant(
            "doubt-told-as-refusal",
            "refused",
            "an append after which the writer was lost is told as one that changed nothing",
            edited((f"{_WRITERS}._in_time", "raise with_unknown_outcome(problem_of(error)) from error", "raise")),
            300,
            faults=(*HUNG, "cut off a gateway"),
            busy="plain",
        ),
        Mutant(
            "late-told-as-refusal",
            "refused",
            "an append without acknowledgement in time is told as one that changed nothing",
            edited(
                (
                    f"{_WRITERS}._in_time",
                    "raise with_unknown_outcome(problem) from None",
                    'raise HttpProblem(503, "TRY_AGAIN", "later") from None',
                )
            ),
            300,
            faults=("cut off a gateway", "cut off a gateway", "kill"),
        ),
        Mutant(
            "sequence-in-memory-only",
            "once",
            "sequences are known to the writer of one gateway only, and not to the next one",
            edited(
                (
                    "buckram.streams.write.opening:open_writer",
                    "table = await load_producers(client, streams, name, head)",
                    "table = type(await load_producers(client, streams, name, head))()",
                )
            ),
            200,
            faults=HUNG,
            busy="sequences",
        ),
        Mutant(
            "condition-forgotten",
            "told",
            "expect_offset is not passed on",
            edited((f"{_RECORDS}._append", 'query["expect_offset"]', "None")),
            200,
        ),
        Mutant(
            "half-a-body",
            "told",
            "the last line of a body is left out",
            edited(
                (
                    "buckram.serve.gateway.streams.record_bodies:rows_of",
                    "rows, bad = form.parse(lines, 1, most_record_bytes)",
                    "rows, bad = form.parse(lines[:2], 1, most_record_bytes)",
                )
            ),
        ),
        # -- tails and pages ---------------------------------------------------------------------------
        Mutant(
            "tail-resumes-late",
            "tail",
            "a tail resumes behind the next record",
            edited((f"{_TAILS}:start_after", "position = last.offset + 1", "position = last.offset + 2")),
            busy="tails",
        ),
        Mutant(
            "tail-resumes-early",
            "tail",
            "a tail resumes with the record that it had last",
            edited((f"{_TAILS}:start_after", "position = last.offset + 1", "position = last.offset")),
            busy="tails",
        ),
        Mutant(
            "piece-from-behind",
            "tail",
            "a tail that resumes within a piece of the ring lacks the record there",
            edited((f"{_TAILS}:_from", '.partition(b"-")[0]) >= position', '.partition(b"-")[0]) > position')),
            200,
            busy="tails",
        ),
        Mutant(
            "ring-forgets-its-begin",
            "tail",
            "a tail that the ring has overtaken goes on in the ring",
            edited((f"{_TAILS}:Feed._publish", "self.begin = self._pieces[0].first", "pass")),
            200,
            busy="tails",
        ),
        Mutant(
            "tail-skips-behind-a-page",
            "tail",
            "a tail that is behind goes on at the ring after one page",
            edited((f"{_TAILS}:Tails.page", "stop if not found else at if at is not None else stop", "stop")),
            200,
            busy="tails",
        ),
        Mutant(
            "page-skips",
            "page",
            "a page that ends within a batch says that the next one begins behind the batch",
            edited((f"{_RECORDS}._page", "position = kept.next_offset", "position = batch.next_offset")),
            busy="pages",
        ),
        Mutant(
            "too-many-tails",
            "limit",
            "a gateway has more tails than it may",
            edited((f"{_TAILS}:Tails.opened", "if not self._share.has_room(holder):", "if False:")),
            busy="tails",
        ),
        # -- files -------------------------------------------------------------------------------------
        Mutant(
            "cut-file-is-there",
            "files",
            "a file whose body was cut is put as far as it came",
            edited((f"{_BODY}:body_pieces", "raise ClientGone(received)", "return")),
            busy="files",
        ),
        Mutant(
            "rename-of-nothing",
            "files",
            "a rename of what is not there succeeds if the target is",
            edited((f"{_FILES}:Files.rename", "(repeated and present is not None)", "present is not None")),
            busy="files",
        ),
        Mutant(
            "old-rename-of-nothing",
            "files",
            "a rename without options says true where the source is not there",
            edited((f"{_FILES}:_rename_into", "proven and _was_renamed(around.target, source)", "proven")),
            busy="files",
        ),
        Mutant(
            "create-overwrites",
            "files",
            "a create that is to replace nothing does so",
            edited((f"{_FILES}:Files.create", "if_absent=not overwrite", "if_absent=False")),
            200,
            busy="files",
        ),
        Mutant(
            "rename-overwrites",
            "files",
            "a rename that is to replace nothing does so",
            edited((f"{_FILES}:_move", "if_absent=not replace", "if_absent=False")),
            300,
            busy="files",
        ),
        Mutant(
            "listing-forgets",
            "files",
            "a listing lacks the last entry of each page",
            edited((f"{_FILES}:Files.page", "return found, int(", "return found[:-1] if more else found, int(")),
            busy="files",
        ),
        Mutant(
            "delete-takes-all",
            "files",
            "a delete that is not recursive takes what is in the directory",
            edited(
                (f"{_FILES}:Files.delete", "if not recursive:", "if False:"),
                (f"{_FILES}:Files.delete", "recursive=recursive", "recursive=True"),
            ),
            busy="files",
        ),
        Mutant(
            "directory-vanishes",
            "files",
            "a directory goes with its last file",
            edited((f"{_FILES}:_keep", "await objects.mkdirs(path.name)", "pass")),
            busy="files",
        ),
        Mutant(
            "look-without-proof",
            "files",
            "a status is what a gateway knows that may lead no more",
            edited((f"{_FILES}:_needed", "objects.statuses(path.name)", "objects.statuses(path.name, proven=False)")),
            300,
            faults=HUNG,
            busy="files",
        ),
        Mutant(
            "repeated-create-refused",
            "files",
            "a create that is repeated finds its own file and refuses",
            edited((f"{_FILES}:Files.create", "present.metadata.get(ATTEMPTED) == attempt", "False")),
            200,
            faults=LOST,
            busy="files",
        ),
        Mutant(
            "delete-takes-empty-ones",
            "files",
            "a delete that is not recursive takes directories with nothing in them",
            edited((f"{_FILES}:Files.delete", "if not recursive:", "if False:")),
            100,
            busy="files",
        ),
        Mutant(
            "look-is-the-last-word",
            "files",
            "a rename whose source or target has changed since the look fails with another error",
            edited(
                (f"{_FILES}:_refused_with_proof", "except _REFUSALS:", "except (RemoteProblem, ObjectExists):"),
                (f"{_FILES}:_rename_into", "except _REFUSALS:", "except (RemoteProblem, ObjectExists):"),
            ),
            300,
            busy="files",
        ),
        # -- objects -----------------------------------------------------------------------------------
        Mutant(
            "cut-object-is-there",
            "objects",
            "an object whose body was cut is put as far as it came",
            edited((f"{_BODY}:limited_pieces", "raise ClientGone(received)", "return")),
            busy="objects",
        ),
        Mutant(
            "condition-of-put-forgotten",
            "objects",
            "a put with If-None-Match replaces",
            edited((f"{_OBJECTS}.object_pages:ObjectPages._put", "if_absent=condition.if_absent", "if_absent=False")),
            busy="objects",
        ),
        Mutant(
            "uploads-beyond-the-quota",
            "limit",
            "more uploads are open than the namespace may have, as each gateway counts its own",
            edited(
                (
                    "buckram.state.objects.objects:Objects.begin_upload",
                    "merged(space.policy, self._own_policy).max_uploads",
                    "merged(space.policy, self._own_policy).max_uploads + 1",
                )
            ),
            busy="objects",
        ),
        Mutant(
            "late-object-unmarked",
            "answers",
            "a change of objects that is late does not say that its outcome is unknown",
            edited(
                (
                    f"{_OBJECTS}.object_calls:ObjectCalls._unknown",
                    "return with_unknown_outcome(problem)",
                    "return problem",
                )
            ),
            200,
            faults=("cut off a gateway", "cut off a gateway", "cut off a gateway"),
            busy="objects",
        ),
        # -- gateways ----------------------------------------------------------------------------------
        Mutant(
            "lost-writer-stays",
            "ends",
            "a writer that lost its lease is used for ever",
            edited((f"{_WRITERS}.__init__", "writer.closed or writer.lost.is_set()", "False")),
            200,
            faults=TAKEN,
            busy="sequences",
        ),
        Mutant(
            "overtaken-writer-refuses",
            "once",
            "a gateway refuses a sequence by what it knew before another one took the stream",
            edited((f"{_WRITERS}.append", "if await self._is_overtaken(stream, use.item):", "if False:")),
            200,
            faults=TAKEN,
            busy="sequences",
        ),
        Mutant(
            "cancelled-is-answered-500",
            "answers",
            "a gateway that stops answers 500 to whoever waits too long",
            edited(("buckram.serve.http.connection:_OneWrite.__call__", "self._cycle.transport.abort()", "pass")),
            200,
            faults=("cut off a gateway", "stop a gateway", "stop a gateway", "stop a gateway"),
        ),
        Mutant(
            "old-list-of-segments",
            "page",
            "a reader that opens while the last segment goes says that its ledger does not exist",
            edited(
                (
                    "buckram.streams.read.locate:by_newest_list",
                    "(await streams.read(name)).version == at.version",
                    "True",
                )
            ),
            300,
            faults=HUNG,
            busy="pages",
        ),
    )
}

__all__ = ["MUTANTS", "TAKEN", "Mutant"]
