"""Dashboards and alert rules name only metrics that exist, and a real Prometheus answers each query of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from scripts.generate_dashboards import DASHBOARDS, FOLDER, text
from tests.support.exporter_kit import furnished
from tests.support.http_kit import ask
from tests.support.polling import wait_until
from tests.support.prometheus_kit import ROOT, RULES, Prometheus, program, prometheus

from buckram.cluster import Client
from buckram.launch.processes import BookieProcess, stop_all
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.records.underreplication import Underreplication

NAME = re.compile(r"\bbuckram_\w+")
RULE = re.compile(
    r"- alert: (\w+)\n +expr: '(.+)'\n +for: (\w+)\n(?:.+\n)*? +severity: (\w+)\n(?:.+\n)*? +runbook: (\S+)"
)


def rules() -> list[tuple[str, str, str, str, str]]:
    """Alert, expression, time, severity and page of each rule."""
    return [rule for path in RULES for rule in RULE.findall(path.read_text())]


def queries() -> list[str]:
    """All expressions, as Grafana would send them."""
    found = [rule[1] for rule in rules()]
    for path in FOLDER.glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            found += [target["expr"] for target in panel["targets"]]
    return [re.sub(r'"\$\w+"', '".*"', one.replace("$__rate_interval", "1m")) for one in found]


@dataclass
class Site:
    """A cluster of bookies as processes, an exporter, and something of everything in it."""

    bookies: list[BookieProcess]
    exporter: str
    loop: asyncio.AbstractEventLoop
    client: Client

    def pages(self) -> dict[str, list[str]]:
        ready = [one.ready.http for one in self.bookies if one.ready is not None and one.ready.http is not None]
        return {"buckram": ready, "buckram-cluster": [self.exporter]}

    def do(self, coroutine: object) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("deploy")
    uri = f"sqlite://{root / 'metadata.db'}"
    bookies = [
        BookieProcess(
            uri,
            root / f"b{n}",
            bookie_id=f"bookie-{n}",
            options=("--http", "127.0.0.1:0"),
            environment={"BUCKRAM_AUTH_AUDIT": "on" if n == 3 else "off"},
        )
        for n in (1, 2, 3)
    ]
    for one in bookies:
        one.start()
    for one in bookies:
        one.wait_ready()
    command = [sys.executable, "-m", "buckram", "exporter", "--listen", "127.0.0.1:0", "--every", "500ms", "--json"]
    environment = {**os.environ, "BUCKRAM_METADATA": uri}
    exporter = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert exporter.stdout is not None
        port = json.loads(exporter.stdout.readline())["port"]
        context = furnished(uri)
        client = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
        try:
            yield Site(bookies, f"127.0.0.1:{port}", loop, client)
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
    finally:
        exporter.terminate()
        assert exporter.wait(60) == 0
        stop_all(bookies)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_files_are_what_the_script_writes() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DASHBOARDS)
    for name in DASHBOARDS:
        assert (FOLDER / f"{name}.json").read_text() == text(name), "run scripts/generate_dashboards.py"


def test_each_alert_has_a_page_that_says_when_it_fires() -> None:
    by_hand, of_states = RULES
    found = RULE.findall(by_hand.read_text())
    assert len(found) == by_hand.read_text().count("- alert:") >= 9
    assert len(rules()) - len(found) == of_states.read_text().count("- alert:") > 50
    for alert, expression, lasting, severity, page in found:
        said = (ROOT / page).read_text()
        assert said.startswith(f"# {alert}\n")
        when = "at once, as soon as there is" if lasting == "0m" else f"after {lasting} of"
        assert f"It fires {when} `{expression}`, as {severity}." in said


def test_every_metric_is_exposed(site: Site) -> None:
    named = {name for query in queries() for name in NAME.findall(query)}
    assert len(named) > 40

    def missing() -> set[str]:
        exposed = set[str]()
        for address in (*site.pages()["buckram"], site.exporter):
            exposed |= set(NAME.findall(ask(address, "GET", "/metrics").text))
        return named - exposed

    wait_until(lambda: not missing(), "some metric is exposed by nobody", 90)


@pytest.mark.share(3, "containers and alerts")
def test_prometheus_answers_each_query_and_alerts_fire(site: Site, tmp_path: Path) -> None:
    """Those whose fault can be made in seconds; the others fire on made up samples in test_alerts.py."""
    with prometheus(tmp_path, site.pages()) as server:
        wait_until(lambda: bool(server.query("buckram_bookie_state == 1")), "no bookie was scraped")
        wait_until(lambda: bool(server.query("buckram_database_offset")), "the exporter was not scraped")
        for query in queries():
            server.query(query)
        assert server.query("sum(buckram_bookie_state)")
        quiet = {"BuckramAuditorMissing", "BuckramDatabaseWithoutLeader"}  # nobody audits, nobody leads here
        wait_until(lambda: set(server.firing()) >= quiet, "what is so from the start is not told")
        site.do(_make_faults(site))
        wanted = quiet | {
            "BuckramBookieDown",
            "BuckramUnderReplicated",
            "BuckramReaderLags",
            "BuckramQuotaNearlyUsed",
        }
        _wait_for_alerts(site, server, wanted)
        assert "BuckramClusterNotSeen" not in server.firing()


async def _make_faults(site: Site) -> None:
    await site.client.namespaces.create("full", ensemble="2/2/2")  # one copy stays when a bookie is killed
    async with site.client.namespace("full").writer("all") as writer:
        await writer.append(b"x" * 1000)
    await TenantStore(site.client.services.store).set_quotas("full", {"stored_bytes": 1})
    one, other, _ = site.bookies
    assert one.ready is not None
    assert one.ready.http is not None
    said = await asyncio.to_thread(ask, one.ready.http, "PUT", "/api/v1/bookie/state/readonly", '{"readOnly": true}')
    assert said.status == 200
    other.kill()
    store = site.client.services.store
    segment = await anext(site.client.namespace("shop").segments("main"))
    await Underreplication(store.keys, store.root, "test").mark(segment.ledger, ["bookie-2"], 1_000)


def _wait_for_alerts(site: Site, server: Prometheus, wanted: set[str]) -> None:
    """While nobody moves the cursor and a record comes in each second, as often as Prometheus looks.

    Each append is a writer of its own, so a segment more: many of them would make the exporter's looks long.
    """
    due = 0.0

    def seen() -> bool:
        nonlocal due
        if time.monotonic() >= due:
            site.do(_append(site))
            due = time.monotonic() + 1
        return set(server.firing()) >= wanted

    wait_until(seen, f"of {sorted(wanted)} not all fire", 180)


async def _append(site: Site) -> None:
    async with site.client.namespace("shop").writer("orders") as writer:
        await writer.append(b"one more")


def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "rules", *map(str, RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
