"""Metrics of a bookie with tokens: who may read them, and that health is for all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.polling import until
from tests.support.secure_kit import guarded

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.bookie.pages.http_thread import OtherLoop
from buckram.bookie.pages.status_pages import MONITOR, PROBES, StatusPages
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
