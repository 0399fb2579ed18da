"""The main job as `make run` starts it, on a share of the records; and how it finds them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from examples.debian import inputs
from tests.e2e.zookeeper_kit import need_zookeeper
from tests.support.soak import stores

ROOT = Path(__file__).parents[2]


@pytest.mark.share(10, "clusters")
@pytest.mark.spark
@pytest.mark.skipif(not inputs.is_debian(), reason="the job reads what a Debian machine has")
@pytest.mark.parametrize("store", stores("sqlite"))
def test_every_record_comes_back_once_with_a_bookie_and_the_driver_killed(store: str, tmp_path: Path) -> None:
    if store == "zk":
        need_zookeeper()
    picture = tmp_path / "report.png"
    command = [sys.executable, "-m", "examples.debian", "--limit", "4000", "--metadata-store", store]
    command += ["--plots", str(picture)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = json.loads(done.stdout.strip().splitlines()[-1])
    assert {"records", "write_records_per_s", "spark_records_per_s", "seconds"} <= set(last)
    assert (last["lost"], last["duplicated"], last["killed_bookies"]) == (0, 0, 1)
    assert last["records"] == last["written"] == last["counted"] > 0
    assert (last["killed_drivers"], last["stored_again"]) == (1, 0)
    assert last["sent_again"] > 0
    assert last["windows"] > 100
    assert (last["healed"], last["bad_copies"]) == (True, 0)
    assert last["copies"] >= 3 * last["ledgers"]
    assert "bookie-2 stays dead; bookie-4 joins with an empty disk" in done.stdout
    history = last["history"]
    assert history["same"] is True
    assert history["records"] + history["live"] == last["records"]
    assert min(history["records"], history["live"], history["segments"], last["state_bytes"]) > 0
    said = " ".join(done.stdout.split())
    assert "a gateway keeps Spark's checkpoints on the cluster, webhdfs://127.0.0.1:" in said
    database = last["database"]
    assert (database["different"], database["replicas_equal"], database["killed_leaders"]) == (0, True, 1)
    assert database["packages"] + database["entries"] == last["records"]
    assert database["rows"] > 0
    assert database["batches_sent_again"] >= database["batches_known"] > 0
    assert "both replicas of the database, whose leader was killed, have the same bytes" in done.stdout
    assert done.stdout.count("kill -9") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert ("ZooKeeper runs at" in done.stdout) is (store == "zk")


CHANGELOG = b"""foo (1.2-3) unstable; urgency=medium

  * Something; not a heading (at all)

 -- Ann Example <ann@example.org>  Mon, 02 Jan 2023 13:06:21 +0100

foo (1.2-2) unstable; urgency=low

  * Without a date

 -- Bob <bob@example.org>  some day

foo (1.2-1) unstable; urgency=low

  * First

 -- Bob <bob@example.org>  Sun, 1 Jan 1995 00:00:00 +0000
"""


def test_changelogs_are_split_at_their_dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "foo"
    folder.mkdir()
    (folder / "changelog.Debian.gz").write_bytes(gzip.compress(CHANGELOG))
    (folder / "changelog.gz").write_bytes(b"not gzip")
    (tmp_path / "linked").symlink_to(folder)
    monkeypatch.setattr(inputs, "DOCS", tmp_path)
    found = inputs.changelog_entries()
    assert len(found) == 4
    first = found[0].split(b"\n")
    assert first[:5] == [
        b"Package: foo", b"Source: foo", b"Version: 1.2-3", b"Maintainer: Ann Example <ann@example.org>",
        b"Date: 2023-01-02T12:06:21Z",
    ]  # fmt: skip
    assert b"* Something" in found[0]
    assert found[1].split(b"\n")[4] == b"Date: 1995-01-01T00:00:00Z"
    assert found[2].startswith(b"Package: linked\n")


def test_package_records_are_whole_stanzas() -> None:
    text = b"Package: a\nSection: x\n\n\nPackage: b\nDescription: d\n more\n\nNonsense: 1\n"
    assert inputs._stanzas(text) == [b"Package: a\nSection: x", b"Package: b\nDescription: d\n more"]
