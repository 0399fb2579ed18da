"""Metrics of a bookie with tokens: who may read them, and that health is for all.

Metrics of a bookie under Apache's names.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.support.polling import until
from tests.support.secure_kit import guarded

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.pages.http_thread import OtherLoop
from buckram.bookie.pages.status_pages import MONITOR, PROBES, QUANTILES, ApacheMetrics, Figures, StatusPages
from buckram.config import AuthConfig, TlsConfig
from buckram.core.tenants.audit_trail import REFUSED
from buckram.runtime.net.http_server import Answer, Request, text_answer
from buckram.runtime.process.stats import NullStats, PrometheusStats
from buckram.runtime.production import production_runtime
from buckram.serve.admin.cluster_link import ClusterLink
from buckram.serve.admin.serving import _Pages


async def test_metrics_need_a_token_where_clients_do_and_health_needs_none(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=AuthConfig(logins="token")) as running:
        here = OtherLoop(running.bookie, asyncio.get_running_loop())
        pages = StatusPages(here, PrometheusStats(), tokens=True)

        async def status(path: str, token: str = "") -> int:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            return (await pages(Request("GET", path, headers=headers))).status

        made = {
            "": 401,
            "nonsense": 401,
            await running.token("alice"): 403,
            await running.token("old", "admin", lasts_s=-1): 401,
            await running.token("prometheus", MONITOR): 200,
            await running.token("root", "admin"): 200,
        }
        for page in ("/metrics", "/", "/version"):
            assert {token: await status(page, token) for token in made} == made
        assert [await status(page) for page in PROBES] == [200, 200, 200]


async def test_without_tokens_metrics_are_for_all(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        pages = StatusPages(OtherLoop(running.bookie, asyncio.get_running_loop()), PrometheusStats())
        for page in ("/metrics", "/version", *PROBES):
            assert (await pages(Request("GET", page))).status == 200


async def test_a_bookie_that_clients_do_not_find_is_healthy_and_not_ready(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        pages = StatusPages(OtherLoop(running.bookie, asyncio.get_running_loop()), PrometheusStats())
        registration = running.bookie._registration
        assert registration is not None
        await registration.close(unregister=True)
        await until(lambda: running.bookie.state == "unregistered", "its registration stays")
        answers = {page: (await pages(Request("GET", page))).status for page in ("/health", "/ready")}
        assert answers == {"/health": 200, "/ready": 503}


async def test_who_is_refused_a_page_is_in_the_audit_trail(tmp_path: Path) -> None:
    """Those of the HTTP API as well."""
    log = AuditLog(production_runtime().clock, NullStats())
    async with guarded(tmp_path, auth=AuthConfig(logins="token"), events=log) as running:
        here = OtherLoop(running.bookie, asyncio.get_running_loop())
        status = StatusPages(here, PrometheusStats(), tokens=True)
        site: Any = SimpleNamespace(guarded=True, bookie=here)

        async def nothing(request: Request) -> Answer:
            return text_answer("")

        link = ClusterLink("memory:unused", TlsConfig())
        api = _Pages(site, nothing, link)  # type: ignore[arg-type]
        alice, root = await running.token("alice"), await running.token("root", "admin")
        wanted = {"": ("anonymous", "login"), "nonsense": ("anonymous", "login"), alice: ("token:alice", "read")}
        for page, pages in (("/metrics", status), ("/api/v1/bookie/info", api.answer)):
            for token in (*wanted, root):
                headers = {"authorization": f"Bearer {token}"} if token else {}
                log._refusals.take(0)
                answer = await pages(Request("GET", page, headers=headers))
                events = log.batch(100)
                log.written(events)
                assert [(one.principal, one.action) for one in events] == ([wanted[token]] if token in wanted else [])
                assert (answer.status == 200) == (token == root)
                assert all((one.what, one.result) == (f"page {page}", REFUSED) for one in events)


NOW = Figures("writable", "b", log_files=2, log_bytes=1000, dead_bytes=250, free_bytes=25, ledgers=7)


def samples(stats: PrometheusStats, now: Figures = NOW) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = ApacheMetrics(stats.registry, "/data/b-1").render(now, 100, 0.0).decode()
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_operations_are_counted_and_latencies_are_milliseconds() -> None:
    stats = PrometheusStats()
    stats.counter("buckram_bookie_added_entries_total", "entries acknowledged").inc(40)
    stats.counter("buckram_bookie_refused_adds_total", "entries answered with an error").inc(3)
    for _ in range(4):
        stats.histogram("buckram_bookie_add_seconds", "from arrival to acknowledgement").observe(0.003)
    found = samples(stats)
    name, good = "bookkeeper_server_ADD_ENTRY_REQUEST", ("success", "true")
    assert found[f"{name}_count", frozenset([good])] == 40
    assert found[f"{name}_count", frozenset([("success", "false")])] == 3
    assert abs(found[f"{name}_sum", frozenset([good])] - 40 * 3) < 1e-6
    for part in QUANTILES:
        assert 2.5 <= found[name, frozenset([good, ("quantile", str(part))])] <= 5
    journal = frozenset([good, ("quantile", "0.99"), ("journalIndex", "0")])
    assert 2.5 <= found["bookie_journal_JOURNAL_ADD_ENTRY", journal] <= 5


def test_state_and_space_have_their_names() -> None:
    found = {name: value for (name, labels), value in samples(PrometheusStats()).items() if not labels}
    assert found["bookie_SERVER_STATUS"] == 1
    assert found["bookie_ledger_writable_dirs"] == 1
    assert found["bookie_ledger_dir__data_b_1_usage"] == 75
    assert found["bookie_ENTRY_LOG_COMPACT_RATIO"] == 0.25
    assert found["bookie_ledgers_count"] == 7
    away = {name: value for (name, labels), value in samples(PrometheusStats(), Figures("unregistered", "b")).items()}
    assert (away["bookie_SERVER_STATUS"], away["bookie_ENTRY_LOG_COMPACT_RATIO"]) == (-1, 0)
