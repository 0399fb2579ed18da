"""Metrics of a bookie with tokens: who may read them, and that health is for all."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.secure_kit import guarded

from buckram.bookie.beside import OtherLoop
from buckram.bookie.status_pages import MONITOR, PROBES, StatusPages
from buckram.config import AuthConfig
from buckram.net.http import Request
from buckram.net.stats import PrometheusStats


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
