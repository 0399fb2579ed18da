"""Marks, locks, switches and votes behave alike on every store."""

from __future__ import annotations

from tests.contracts.conftest import Cluster, Watch

from buckram.core.healing.records import UnderreplicationMark
from buckram.metadata.records.auditor_election import Election, elected_of
from buckram.metadata.records.underreplication import Underreplication

NOW = 1_700_000_000_000


async def tree(cluster: Cluster, name: str = "w") -> Underreplication:
    found = Underreplication(await cluster.keys(), "/ledgers", name)
    await found.prepare()
    return found


async def test_a_mark_gathers_names_and_gets_a_new_version_each_time(cluster: Cluster) -> None:
    one, two = await tree(cluster), await tree(cluster)
    await one.mark(7, ["b1"], NOW)
    await two.mark(7, ["b2", "b1"], NOW + 1)
    assert await one.read_mark(7) == UnderreplicationMark(7, ("b1", "b2"), NOW + 1, 1)
    await two.mark(7, ["b1"], NOW + 2)
    assert await one.read_mark(7) == UnderreplicationMark(7, ("b1", "b2"), NOW + 2, 2)
    assert await one.read_mark(8) is None


async def test_a_ledger_that_was_marked_again_stays_marked(cluster: Cluster) -> None:
    one, two = await tree(cluster), await tree(cluster)
    await one.mark(7, ["b1"], NOW)
    mark = await one.read_mark(7)
    assert mark is not None
    await two.mark(7, ["b1"], NOW)
    assert not await one.unmark(mark)
    again = await one.read_mark(7)
    assert again is not None
    assert await one.unmark(again)
    assert await one.unmark(again), "a mark that is gone already is no trouble"
    assert await one.read_mark(7) is None


async def test_marks_are_listed_in_the_order_of_their_ledgers(cluster: Cluster) -> None:
    one = await tree(cluster)
    ids = [0, 5, 65_535, 65_536, 2**32, 2**48 + 3, 2**63 - 1]
    for ledger in reversed(ids):
        await one.mark(ledger, [], NOW)
    assert [ledger async for ledger in one.marked()] == ids
    for index, ledger in enumerate(ids):
        assert [found async for found in one.marked(ledger)] == ids[index + 1 :]
    assert [found async for found in one.marked(2**32 - 1)] == ids[4:]


async def test_unmarking_removes_the_folders_that_are_empty(cluster: Cluster) -> None:
    keys = await cluster.keys()
    one = Underreplication(keys, "/ledgers", "w")
    await one.prepare()
    for ledger in (5, 6):
        await one.mark(ledger, [], NOW)
    for ledger in (5, 6):
        mark = await one.read_mark(ledger)
        assert mark is not None
        assert await one.unmark(mark)
        left = await keys.children("/ledgers/underreplication/ledgers")
        assert left == (["0000"] if ledger == 5 else [])


async def test_a_finished_ledger_loses_mark_folder_and_lock_together(cluster: Cluster) -> None:
    keys = await cluster.keys()
    one, two = Underreplication(keys, "/ledgers", "w1"), await tree(cluster, "w2")
    await one.prepare()
    await two.mark(7, ["b1"], NOW)
    (candidate,) = [found async for found in one.candidates()]
    assert candidate.ledger == 7
    assert await one.lock(7, candidate.folder_version)
    mark = await one.read_mark(7)
    assert mark is not None
    await two.mark(7, ["b2"], NOW)
    assert not await one.finish(mark, candidate.folder_version), "it was marked again"
    again = await one.read_mark(7)
    assert again == UnderreplicationMark(7, ("b1", "b2"), NOW, 1)
    assert await two.locked() == [7]
    assert not await two.finish(again, candidate.folder_version), "the lock is another's"
    assert await one.finish(again, candidate.folder_version)
    assert await one.read_mark(7) is None
    assert await two.locked() == []
    assert [found async for found in two.candidates()] == []
    assert not await two.lock(7, candidate.folder_version), "somebody else was here"
    await one.tidy([7])
    assert await keys.children("/ledgers/underreplication/ledgers") == []


async def test_a_lock_of_the_next_session_is_not_given_back_by_the_one_before(cluster: Cluster) -> None:
    one, two = await tree(cluster, "w1"), await tree(cluster, "w2")
    await one.mark(7, ["b1"], NOW)
    (candidate,) = [found async for found in one.candidates()]
    assert await one.lock(7, candidate.folder_version)
    mark = await one.read_mark(7)
    assert mark is not None
    await one.unlock(7)
    assert await two.lock(7, candidate.folder_version)
    assert not await one.finish(mark, candidate.folder_version)
    assert await two.locked() == [7]
    assert await two.finish(mark, candidate.folder_version)


async def test_candidates_are_the_ledgers_with_a_folder(cluster: Cluster) -> None:
    keys = await cluster.keys()
    one = Underreplication(keys, "/ledgers", "w")
    await one.prepare()
    ids = [0, 5, 65_535, 65_536, 2**32, 2**48 + 3, 2**63 - 1]
    for ledger in ids:
        await one.mark(ledger, [], NOW)
    for stranger in ("/0000/0000/0000/notes", "/0000/0000/0000/00FF", "/ffff/0000/0000/0000", "/z/z/z/z"):
        await keys.create(f"/ledgers/underreplication/ledgers{stranger}", b"")
    assert [found.ledger async for found in one.candidates()] == ids


async def test_one_session_works_on_a_ledger_until_it_ends(cluster: Cluster) -> None:
    keys = await cluster.keys()
    one, two = Underreplication(keys, "/ledgers", "w1"), await tree(cluster, "w2")
    assert await one.lock(7)
    assert not await two.lock(7)
    assert await one.lock(7), "the reply to the first call may have been lost"
    assert await two.lock_holder(7) == "w1"
    await two.unlock(7)
    assert await two.locked() == [7]
    watch = Watch()
    assert await two.locked(watch) == [7]
    await keys.close()
    await watch.fired()
    assert await two.lock(7)
    await two.unlock(7)
    await two.unlock(7)
    assert await two.locked() == []
    assert await two.lock_holder(7) == ""


async def test_the_switch_is_seen_by_everybody(cluster: Cluster) -> None:
    one, two = await tree(cluster), await tree(cluster)
    watch = Watch()
    assert await two.enabled(watch)
    assert await one.enable(False)
    await watch.fired()
    assert not await two.enabled()
    assert not await one.enable(False)
    assert await two.enable(True)
    assert not await two.enable(True)
    assert await one.enabled()


async def test_the_delay_of_the_tree_wins_over_the_default(cluster: Cluster) -> None:
    one, two = await tree(cluster), await tree(cluster)
    watch = Watch()
    assert await one.read_delay(300.0, watch) == (300.0, -1)
    await two.set_delay(10)
    await watch.fired()
    again = Watch()
    assert await one.read_delay(300.0, again) == (10.0, 0)
    await two.set_delay(10)
    await again.fired()
    assert await one.read_delay(300.0) == (10.0, 1), "the same value again asks for an audit"


async def test_checks_remember_when_they_were_complete(cluster: Cluster) -> None:
    one, two = await tree(cluster), await tree(cluster)
    assert await one.last_run_ms("checkallledgers") == -1
    for moment in (NOW, NOW + 5):
        await one.set_last_run("checkallledgers", moment)
        assert await two.last_run_ms("checkallledgers") == moment


async def test_one_of_the_candidates_is_elected_and_the_next_follows(cluster: Cluster) -> None:
    sessions = [await cluster.keys() for _ in range(3)]
    candidates = [Election(keys, "/ledgers", f"b{number}") for number, keys in enumerate(sessions)]
    watches = [Watch() for _ in candidates]
    for candidate in candidates:
        await candidate.stand()
        await candidate.stand()
    assert [await c.elected(w) for c, w in zip(candidates, watches, strict=True)] == [True, False, False]
    votes = await candidates[2].votes()
    assert elected_of(votes) == "b0"
    assert [vote.owned for vote in votes] == [False, False, True]
    await sessions[0].close()
    await watches[1].fired()
    assert watches[2].times == 0, "only the next one is woken"
    assert await candidates[1].elected(watches[1])
    await candidates[1].withdraw()
    await watches[2].fired()
    assert await candidates[2].elected(watches[2])


async def test_an_elected_candidate_learns_that_its_vote_is_gone(cluster: Cluster) -> None:
    keys = await cluster.keys()
    candidate, watch = Election(keys, "/ledgers", "b0"), Watch()
    assert await candidate.elected(watch)
    await cluster.backend.lose_session(keys)
    other = Election(await cluster.keys(), "/ledgers", "b1")
    assert await other.elected(Watch())
    await watch.fired()
