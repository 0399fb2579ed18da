"""Who may publish: steps of jobs and of queries, checkpoints that were reset, queries that were replaced."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.streams.metadata.head import Head, Transaction, decode_head, encode_head
from buckram.core.streams.metadata.insertions import Insertion, decode_insertion, encode_insertion
from buckram.core.streams.metadata.transactions import (
    APPLICATION_KEPT_US,
    MAX_APPLICATIONS,
    ONCE,
    ONCE_KEPT_US,
    StepId,
    begins,
    check_known,
    decided,
    first_batch,
    forked_query,
    history_mark,
    is_fork_of,
    recorded,
    settled,
)
from buckram.errors import BatchesLost, CheckpointReset, InvalidArgument, StaleTransaction, UnknownQuery
from buckram.types import History

Known = Mapping[str, Transaction]
NAMED = StepId("app", 0, "q1", "p")
PLAIN = StepId("q1", 0, "q1", "p")


def after(known: Known, *steps: StepId, now: int = 1) -> Known:
    for step in steps:
        assert settled("s", known, step) is None
        known = recorded("s", known, step, 10 * step.version, 10 * step.version + 10, now)
    return known


def test_a_job() -> None:
    known = after({}, StepId("job", 3), StepId("other", 1))
    assert settled("s", known, StepId("job", 3)) == (3, 30, 40, 1, "", "", (), "", 0, 0, "")
    with pytest.raises(StaleTransaction):
        settled("s", known, StepId("job", 2))
    assert after(known, StepId("job", 9))["job"].version == 9
    assert [decided(known, "job", "", version) for version in (2, 3, 4)] == [True, True, False]
    assert not decided(known, "unknown", "", 0)


def test_an_older_batch_of_a_query_is_told_what_to_do() -> None:
    known = after({}, NAMED, NAMED._replace(version=1))
    with pytest.raises(StaleTransaction, match=r"Put the newest checkpoint back; or .*onCheckpointReset=newEpoch"):
        settled("s", known, NAMED)


def test_the_longest_pause_of_a_query_is_known_and_forgotten() -> None:
    known = after({}, NAMED, now=1_000)
    pauses = []
    for version, now in enumerate((9_000, 10_000, 11_000), 1):
        known = after(known, NAMED._replace(version=version), now=now)
        pauses.append(next(iter(known.values())).pause)
    assert pauses == [8_000, 7_000, 6_125], "one that is not repeated counts less with each batch"
    head = decode_head("k", encode_head(Head("0" * 16, 5, transactions=known)))
    assert next(iter(head.transactions.values())).pause == 6_125
    assert next(iter(after(after({}, StepId("job", 1)), StepId("job", 2), now=99).values())).pause == 0, "no query"


def test_the_plan_of_a_batch_is_recorded_also_by_a_writer_that_is_asked() -> None:
    asked = decode_insertion("k", encode_insertion("s", Insertion(NAMED._replace(planned=7), (), "n")))
    assert asked.step.planned == 7
    assert b"planned" not in encode_insertion("s", Insertion(NAMED, (), "n"))
    known = after({}, asked.step, PLAIN._replace(query="q9", place=""))
    head = decode_head("k", encode_head(Head("0" * 16, 5, transactions=known)))
    assert [done.planned for done in head.transactions.values()] == [7, 0]
    assert after(known, NAMED._replace(version=1))["app"].planned == 0, "it is that of the newest batch"


def test_batches_that_may_have_gone_with_a_restore_are_noticed() -> None:
    before, now = history_mark("c", History(1, "r1")), history_mark("c", History(2, "r2"))
    assert len({before, now, history_mark("promoted", History(1, "r1"))}) == 3
    asked = decode_insertion("k", encode_insertion("s", Insertion(NAMED._replace(history=before), (), "n")))
    known = after({}, asked.step, NAMED._replace(version=1, history=before))
    assert decode_head("k", encode_head(Head("0" * 16, 5, transactions=known))).transactions == known
    for version in (3, 9):
        with pytest.raises(BatchesLost, match=f"batch {version}, and the newest.*known here is 1") as told:
            check_known("s", known, NAMED._replace(version=version, history=now))
        assert told.value.recorded == 1
    check_known("s", known, NAMED._replace(version=2, history=now))
    check_known("s", known, NAMED._replace(version=9, history=now, new_epoch=True))
    check_known("s", known, NAMED._replace(version=9, history=before))  # those between had no rows
    check_known("s", after(known, NAMED._replace(version=2, history=now)), NAMED._replace(version=9, history=now))


@pytest.mark.parametrize(("then", "now"), [("", "m"), ("m", "")])
def test_of_a_history_that_is_not_known_nothing_is_said(then: str, now: str) -> None:
    assert history_mark("c", History()) == "", "as earlier releases, and clusters that never noted any"
    check_known("s", after({}, NAMED._replace(history=then)), NAMED._replace(version=9, history=now))


@pytest.mark.parametrize("first", [NAMED, PLAIN])
def test_another_query_in_its_place(first: StepId) -> None:
    known = after({}, first, first._replace(version=1))
    second = first._replace(application=first.application if first is NAMED else "q2", query="q2", version=0)
    for version in (0, 1, 2, 7):
        with pytest.raises(CheckpointReset) as told:
            settled("s", known, second._replace(version=version))
        assert not told.value.out
    assert not decided(known, second.application, "q2", 0), "its ledgers may still be published, in a new epoch"
    known = after(known, second._replace(new_epoch=True), second._replace(version=1))
    assert [(txn.query, txn.version, txn.past) for txn in known.values()] == [("q2", 1, ("q1",))]
    for version in (0, 1, 2, 7):
        with pytest.raises(CheckpointReset, match="replaced by query q2") as told:
            settled("s", known, first._replace(version=version, new_epoch=True))
        assert told.value.out
        assert decided(known, first.application, "q1", version)
    third = second._replace(query="q3", new_epoch=True, application="q3" if first is PLAIN else "app")
    known = after(known, third)
    assert known[third.application].past == ("q1", "q2")


def test_a_query_under_another_name_is_the_same() -> None:
    known = after({}, PLAIN, PLAIN._replace(version=1))
    renamed = StepId("app", 1, "q1", "elsewhere")
    assert settled("s", known, renamed) == known["q1"]
    known = after(known, renamed._replace(version=2))
    assert [(name, txn.version, txn.past) for name, txn in known.items()] == [("app", 2, ())]
    assert decided(known, "q1", "q1", 2)
    foreign = after(after({}, PLAIN), StepId("app", 0, "q9", "other"))
    with pytest.raises(CheckpointReset):
        settled("s", foreign, StepId("app", 1, "q1", "p"))  # that name is another query's


def test_jobs_and_queries_do_not_share_names() -> None:
    with pytest.raises(CheckpointReset, match="choose another txnAppId"):
        settled("s", after({}, NAMED), StepId("app", 5))
    with pytest.raises(CheckpointReset, match="choose another txnAppId"):
        settled("s", after({}, StepId("app", 5)), NAMED)
    assert settled("s", after({}, NAMED), StepId("q5", 0, "q5", "")) is None, "no place is nobody's place"


def test_names_make_room() -> None:
    known = {f"{ONCE}{n}": Transaction(0, 0, 0, 0) for n in range(5)} | {"job": Transaction(0, 0, 0, 0)}
    assert list(recorded("s", known, StepId("new", 0), 0, 1, ONCE_KEPT_US + 1)) == ["job", "new"]
    full = {f"app{n}": Transaction(0, 0, 0, n) for n in range(MAX_APPLICATIONS)}
    with pytest.raises(InvalidArgument, match=str(MAX_APPLICATIONS)):
        recorded("s", full, StepId("new", 0), 0, 1, APPLICATION_KEPT_US - 1)
    assert "app0" not in recorded("s", full, StepId("new", 0), 0, 1, APPLICATION_KEPT_US + 1)
    assert recorded("s", full, StepId("app7", 1), 0, 1, 5)["app7"].version == 1
    once = full | {f"{ONCE}{n}": Transaction(0, 0, 0, 5) for n in range(3)}
    del once["app0"], once["app1"], once["app2"]
    assert f"{ONCE}0" not in recorded("s", once, StepId("new", 0), 0, 1, ONCE_KEPT_US)


def test_records_are_kept_in_the_head() -> None:
    known = after({}, NAMED, StepId("app", 0, "q2", "p", True), StepId("job", 4))
    head = Head("0" * 16, 5, transactions=known)
    assert decode_head("k", encode_head(head)) == head
    old = encode_head(Head("0" * 16, 5, transactions={"job": Transaction(4, 1, 2, 3)}))
    assert b'"job":[4,1,2,3]' in old


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=25))
def test_whatever_queries_do_each_batch_is_published_once(moves: list[tuple[str, str, bool]]) -> None:
    """Queries come and go under two names, each with its own batches; who is replaced never comes back."""
    known: Known = {}
    next_batch: dict[str, int] = {}
    published: list[tuple[str, int]] = []
    out: dict[str, None] = {}
    for query, name, new_epoch in moves:
        step = StepId(name, next_batch.get(query, 0), query, f"place of {name}", new_epoch)
        try:
            done = settled("s", known, step)
        except CheckpointReset:
            refused = query in out or not new_epoch
            assert refused
            continue
        assert done is None
        assert query not in out
        before = {txn.query for txn in known.values()}
        known = recorded("s", known, step, 0, 1, 1)
        out |= dict.fromkeys(before - {txn.query for txn in known.values()})
        published.append((query, step.version))
        next_batch[query] = step.version + 1
        assert settled("s", known, step) is not None
        assert decided(known, name, query, step.version)
        assert not decided(known, name, query, step.version + 1)
    assert len(published) == len(dict.fromkeys(published))


# -- queries whose checkpoints were forked ---------------------------------------------------------------------

SOURCE = "0b0e2f5c-9a3b-4c1d-8e2f-112233445566"


@given(st.integers(0, 2**36 - 1), st.integers(0), st.uuids(version=4))
def test_the_id_of_a_fork_says_of_which_query_and_after_which_batch(batch: int, random: int, source: uuid.UUID) -> None:
    fork = forked_query(str(source), batch, random)
    assert str(uuid.UUID(fork)) == fork
    assert (uuid.UUID(fork).version, uuid.UUID(fork).variant) == (8, uuid.RFC_4122)
    assert (first_batch(fork), is_fork_of(fork, str(source))) == (batch + 1, True)
    assert fork != forked_query(str(source), batch, random + 1)
    second = forked_query(fork, batch, random)
    assert is_fork_of(second, fork)
    assert not is_fork_of(second, str(source))
    assert not is_fork_of(fork, fork)


@pytest.mark.parametrize("query", [SOURCE, "", "q1", "no-uuid"])
def test_other_ids_are_of_no_fork(query: str) -> None:
    assert first_batch(query) == 0
    assert not is_fork_of(query, SOURCE)
    assert not is_fork_of(query, query)


@pytest.mark.parametrize("batch", [-1, 2**36])
def test_a_batch_for_which_no_id_has_room(batch: int) -> None:
    with pytest.raises(InvalidArgument, match=f"batch {batch} of query {SOURCE}"):
        forked_query(SOURCE, batch, 1)


def fork_step(version: int = 4, application: str = "", after: int = 3) -> StepId:
    query = forked_query(SOURCE, after, 7)
    return StepId(application or query, version, query, "of the fork")


def of_source(first: int, stop: int, version: int = 3, application: str = SOURCE) -> Known:
    return {application: Transaction(version, first, stop, 1, SOURCE, "of the source")}


def test_a_fork_begins_with_its_own_first_batch_in_a_stream_of_its_own() -> None:
    check_known("s", {}, fork_step())
    assert begins(fork_step())
    assert not begins(fork_step(0))
    assert not begins(fork_step(5))
    known = after({}, fork_step())
    check_known("s", known, fork_step(5))
    with pytest.raises(UnknownQuery, match="deleted and made anew"):
        check_known("s", {}, fork_step(5))  # what it wrote before is not here
    with pytest.raises(UnknownQuery):
        check_known("s", {}, fork_step(0))


@pytest.mark.parametrize("application", ["", "app"])
def test_a_fork_goes_on_where_the_batches_of_its_source_came_along(application: str) -> None:
    known = of_source(20, 30, application=application or SOURCE)
    step = fork_step(application=application)
    check_known("s", known, step, 30)
    assert settled("s", known, step, 30) is None
    later = recorded("s", known, step, 30, 40, 2)
    assert settled("s", later, step, 30) is not None
    assert settled("s", later, step._replace(version=5), 30) is None
    check_known("s", later, step._replace(version=5), 30)
    if application:  # The source is out, as after a new epoch.
        with pytest.raises(CheckpointReset):
            settled("s", later, StepId("app", 4, SOURCE, "of the source"), 30)


@pytest.mark.parametrize(
    ("known", "came"),
    [
        (of_source(20, 30), 0),  # the very stream of the source
        (of_source(0, 0), 0),  # of which no batch had a row
        (of_source(20, 30), 20),  # a fork to which the source itself has written
        (of_source(20, 20), 20),  # batches without rows
        (of_source(20, 30), 25),
        (of_source(20, 30, version=2), 30),  # batch 3 may be missing
        (of_source(20, 30, version=4), 30),  # batch 4 would come twice
        ({"other": Transaction(3, 20, 30, 1, "q9", "", (SOURCE,))}, 30),  # another query goes on in its place
    ],
)
def test_a_fork_is_refused_where_batches_would_come_twice_or_be_missing(known: Known, came: int) -> None:
    with pytest.raises(UnknownQuery, match="is a fork of query") as told:
        check_known("s", known, fork_step(), came)
    assert (told.value.source, told.value.version) == (SOURCE, 4)
    check_known("s", known, fork_step()._replace(new_epoch=True), came)
    (txn,) = known.values()
    if txn.query == SOURCE:
        with pytest.raises(CheckpointReset):
            settled("s", {"app": txn}, fork_step(application="app"), came)
