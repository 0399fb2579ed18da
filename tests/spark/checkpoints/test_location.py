"""The place of a checkpoint: one for all its spellings and gateways, and queries of earlier releases go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.spark.test_sink_parts import commit, create, values

from buckram import sync
from buckram.core.streams.metadata.head import Transaction, decode_head, encode_head
from buckram.core.streams.names import stream_name
from buckram.errors import CheckpointReset
from buckram.spark.checkpoints.location import Place, checkpoint_place
from buckram.testing import ThreadedCluster

RECORDS = json.loads((Path(__file__).parents[1] / "fixtures" / "records_0_2.json").read_text())
QUERY, LOCATION = RECORDS["query"], RECORDS["location"]


def place(text: str, cluster: str = "own") -> Place:
    return checkpoint_place(text, lambda: cluster)


@contextmanager
def gateway(answer: bytes, *, busy: int = 0) -> Iterator[str]:
    """A server that gives this answer to all that is asked, but for the first `busy` requests; yields its port."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(503 if len(asked) <= busy else 200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield str(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spellings_of_one_checkpoint_path_are_equal() -> None:
    same = {place(text).place for text in ("/a/b", "/a/b/", "file:/a/b", "file:///a/b", " /a/b ", "/a//./x/../b")}
    assert len(same) == 1
    assert place("/a/b") == Place(place("/a/b").place)
    assert len({place(text).place for text in ("/a/b", "/a/c", "a/b", "s3a://a/b", "hdfs:/a/b")}) == 5
    assert place("HDFS://Name:8020//a/b").place == place("hdfs://name:8020/a/b/").place
    assert place("hdfs://name/a/b").was == "", "it is as earlier releases wrote it"
    assert place("s3a://a/B").place != place("s3a://a/b").place
    assert place("") == Place()


def test_the_same_checkpoint_through_two_gateways_is_one_place() -> None:
    names = ("webhdfs://buckram/default/q", "webhdfs://127.0.0.1:1/default/q", "swebhdfs://BUCKRAM/default//q/")
    assert len({place(name).place for name in names}) == 1
    assert len({place(name).was for name in names}) == 3
    assert place(names[0], "other").place != place(names[0]).place
    assert place("webhdfs://buckram/other/q").place != place(names[0]).place
    with gateway(b'{"FsServerDefaults": {}, "BuckramCluster": "another"}') as port:
        assert place(f"webhdfs://127.0.0.1:{port}/default/q").place == place(names[0], "another").place
        assert place(f"webhdfs://localhost:{port}/default/q").place == place(names[0], "another").place


def test_a_gateway_that_is_busy_is_asked_again_and_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with gateway(b'{"BuckramCluster": "another"}', busy=2) as port:
        assert place(f"webhdfs://127.0.0.1:{port}/q").place == place("webhdfs://buckram/q", "another").place
    with gateway(b'{"BuckramCluster": "another"}', busy=9) as port:
        busy = f"webhdfs://127.0.0.1:{port}/q"
        assert place(busy).place == place("webhdfs://buckram/q").place
    assert place("webhdfs://127.0.0.1:no-port/q").place == place("webhdfs://buckram/q").place


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"BuckramCluster": 7}', b'{"BuckramCluster": ""}'])
def test_a_gateway_that_does_not_say_is_taken_for_one_of_the_own_cluster(answer: bytes) -> None:
    with gateway(answer) as port:
        assert place(f"webhdfs://127.0.0.1:{port}/default/q").place == place("webhdfs://buckram/default/q").place


def change(cluster: ThreadedCluster, stream: str, how: Callable[[Any], Any]) -> dict[str, Transaction]:
    """Change the head of a stream; returns its transactions then."""
    with sync.connect(cluster.uri) as client:

        async def run() -> dict[str, Transaction]:
            ns = client._client.namespace()
            streams = ns._streams
            found = how((await streams.read(ns.log_name(stream_name(stream).stream))).head)
            key = streams.layout.head(ns.log_name(stream_name(stream).stream))
            at = await streams.keys.get(key)
            await streams.keys.set(key, encode_head(found), at.version)
            return dict(found.transactions)

        return client._thread.run(run)


def test_a_query_of_an_earlier_release_goes_on(cluster: ThreadedCluster, stream: str) -> None:
    create(cluster, stream)
    other = LOCATION.replace("gateway-1:8080", "buckram")

    def as_then(head: Any) -> Any:
        raw = json.loads(encode_head(head)) | {"transactions": RECORDS["transactions"]}
        return decode_head("k", json.dumps(raw).encode())

    then = change(cluster, stream, as_then)[QUERY]
    assert (then.version, then.place) == (1, place(LOCATION).was)
    # Its checkpoint was deleted: the old digest says so, as long as the old spelling is used.
    with pytest.raises(CheckpointReset):
        commit(cluster, stream, "new", 0, [b"x"], checkpointlocation=LOCATION)
    commit(cluster, stream, QUERY, 2, [b"goes on"], checkpointlocation=LOCATION)
    now = change(cluster, stream, lambda head: head)[QUERY]
    assert (now.version, now.query) == (2, QUERY)
    assert now.place not in ("", then.place), "it is written anew"
    # From now on it is known through any gateway.
    for location in (LOCATION, other):
        with pytest.raises(CheckpointReset, match="the checkpoint was reset"):
            commit(cluster, stream, "new", 0, [b"x"], checkpointlocation=location)
    commit(cluster, stream, QUERY, 3, [b"and on"], checkpointlocation=other)
    assert values(cluster, stream) == [b"goes on", b"and on"]


def test_the_fixture_has_a_table_without_places() -> None:
    """What tests/spark/test_db.py makes by hand is what that release wrote."""
    assert "place" not in RECORDS["table"][0]
    assert RECORDS["rows"] == [[QUERY, 1, QUERY, 1, 1]]
