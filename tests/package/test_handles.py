"""The handles that users hold have the documented methods, and none that only their engines need."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import buckram
from buckram import sync
from buckram.testing import ThreadedCluster
from buckram.testing import cluster as running

PROMISED = {
    buckram.Writer: {
        "abandon", "append", "append_many", "append_nowait", "close", "closed", "degraded", "degraded_reason",
        "ensemble_changes", "flush", "force", "last_confirmed", "last_pushed", "ledger_id", "length", "metadata",
        "misplaced", "pending_bytes", "pending_entries", "replicated",
    },
    buckram.StreamWriter: {
        "abandon", "acknowledged", "append", "append_many", "append_nowait", "close", "closed", "degraded",
        "degraded_reason", "end", "epoch", "flush", "lost", "lost_reason", "max_record_bytes", "name", "next_offset",
        "pending_bytes", "policy", "roll", "roll_trouble", "stream",
    },
}  # fmt: skip
"""Adding a name is a decision: add it here."""


async def test_a_handle_has_exactly_its_documented_methods() -> None:
    async with running(3) as cluster, cluster.client() as client:
        async with client.create() as ledger, client.namespace("default").writer("s", create=True) as stream:
            for handle in (ledger, stream):
                found = {name for name in dir(handle) if not name.startswith("_")}
                assert found == PROMISED[type(handle)]
            await asyncio.gather(ledger.append(b"x"), stream.append(b"x"))
            assert repr(ledger) == f"<Writer ledger={ledger.ledger_id} open last_confirmed=0>"
            assert repr(stream) == "<StreamWriter default/s open epoch=1 next_offset=1>"
        assert " closed " in repr(ledger)
        assert " closed " in repr(stream)
        assert repr(client) == f"<Client {client.uri} open>"
        async with client.open(ledger.ledger_id) as reader:
            assert repr(reader) == f"<Reader ledger={ledger.ledger_id} closed last_confirmed=0>"
        assert repr(client.namespace("default")) == "<Namespace default>"


@pytest.mark.parametrize("cls", [buckram.Writer, buckram.StreamWriter])
def test_append_of_a_handle_has_the_signature_of_its_engine(cls: type) -> None:
    """A handle's append and append_nowait are bound to its engine's methods, so the signatures must agree."""
    engine = inspect.get_annotations(cls.__init__, eval_str=True)["engine"]
    for name in ("append", "append_nowait"):
        assert inspect.signature(getattr(cls, name)) == inspect.signature(getattr(engine, name))


async def test_with_on_an_async_handle_names_async_with() -> None:
    async with running(3) as cluster, cluster.client() as client:
        writer = await client.create()
        for handle in (buckram.connect(cluster.uri), client.create(), client, writer):
            with pytest.raises(TypeError, match="use `async with` instead of `with`"), handle:  # type: ignore[union-attr]
                pass
        await writer.close()


def test_async_with_on_a_sync_handle_names_with() -> None:
    async def enter(handle: sync.Client | sync.Writer) -> None:
        with pytest.raises(TypeError, match="use `with` instead of `async with`"):
            async with handle:
                pass

    with ThreadedCluster(bookies=3) as cluster, sync.connect(cluster.uri) as client, client.create() as writer:
        asyncio.run(enter(client))
        asyncio.run(enter(writer))
        assert repr(client) == f"<sync.Client {cluster.uri} open>"
        assert repr(writer) == f"<sync.Writer ledger={writer.ledger_id} open last_confirmed=-1>"


def test_dir_of_the_package_lists_its_exports() -> None:
    assert set(buckram.__all__) <= set(dir(buckram)), "else IPython completes nothing"
    assert buckram.__version__[0].isdigit()
