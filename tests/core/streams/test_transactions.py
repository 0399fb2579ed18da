"""Who may publish: steps of jobs and of queries, checkpoints that were reset, queries that were replaced."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.streams.head import Head, Transaction, decode_head, encode_head
from buckram.core.streams.transactions import (
    APPLICATION_KEPT_US,
    MAX_APPLICATIONS,
    ONCE,
    ONCE_KEPT_US,
    StepId,
    decided,
    recorded,
    settled,
)
from buckram.errors import CheckpointReset, InvalidArgument, StaleTransaction

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
    assert settled("s", known, StepId("job", 3)) == (3, 30, 40, 1, "", "", ())
    with pytest.raises(StaleTransaction):
        settled("s", known, StepId("job", 2))
    assert after(known, StepId("job", 9))["job"].version == 9
    assert [decided(known, "job", "", version) for version in (2, 3, 4)] == [True, True, False]
    assert not decided(known, "unknown", "", 0)


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
