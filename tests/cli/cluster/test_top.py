"""`buckram top`: rates of bookies and streams between two looks."""

from __future__ import annotations

import json

from click.testing import CliRunner

from buckram.cli.cluster.top import Look, Stream, _rates, top
from buckram.core.cluster.bookie_report import BookieReport
from buckram.sync import connect
from buckram.testing import ThreadedCluster


def test_rates_are_differences_over_the_time_between() -> None:
    old = BookieReport(added_entries=100, read_bytes=5000)
    new = BookieReport(added_entries=300, read_bytes=1000, connections=2)
    before = Look(10.0, {"b": ("writable", 5, old)}, {"default/s": Stream(10, None)})
    found = _rates(before, Look(12.0, {"b": ("writable", 7, new)}, {"default/s": Stream(30, 4)}))
    bookie = found["bookies"][0]
    assert (bookie["added_entries_per_s"], bookie["connections"], bookie["free_bytes"]) == (100.0, 2, 7)
    assert bookie["read_bytes_per_s"] == 500.0  # it was restarted: its counters began anew
    assert found["streams"] == [{"stream": "default/s", "records_per_s": 10.0, "end": 30, "lag": 4}]


def test_a_cluster_is_shown_once_as_json_and_as_text() -> None:
    with ThreadedCluster(bookies=3) as cluster:
        with connect(cluster.uri) as client, client.namespace().writer("orders") as writer:
            for number in range(5):
                writer.append(b"%d" % number)
        words = ["--once", "--every", "0.1s", "--metadata", cluster.uri]
        done = CliRunner().invoke(top, [*words, "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output.splitlines()[-1])
        assert [one["state"] for one in found["bookies"]] == ["writable"] * 3
        assert found["streams"] == [{"stream": "default/orders", "records_per_s": 0.0, "end": 5, "lag": None}]
        text = CliRunner().invoke(top, words).output
        assert "ADDS/S" in text
        assert "default/orders" in text
