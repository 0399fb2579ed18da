"""The console in a real Chromium: each page, the actions, following a stream, a bookie that dies while one looks.

Needs playwright and Debian's chromium (`make setup-all`); skipped loudly where they are missing.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.health.telling import telling
from tests.serve.gateway.kit import serving
from tests.serve.gateway.shared.test_authentication import guarded
from tests.support.polling import eventually, until

from buckram.cluster import Client
from buckram.core.healing.absences import Attendance, Unsettled, sessions_of
from buckram.healing.overview import COPIES
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.auditor_election import Election
from buckram.serve.gateway.server import Gateway
from buckram.testing import Cluster

WELL = re.compile(r"Healthy|Healthy, with \d+ warning")
"""On a busy machine a bookie may have been away for a moment, and nobody here looks at what it missed."""

pytestmark = pytest.mark.share(2)

CHROMIUM = shutil.which("chromium") or ""
if not os.environ.get("CI"):  # where nothing may be missing
    pytest.importorskip("playwright", reason="THE CONSOLE IS NOT TESTED: `make setup-all` brings playwright")
    if not CHROMIUM:
        pytest.skip("THE CONSOLE IS NOT TESTED: apt-get install chromium", allow_module_level=True)
playwright: Any = importlib.import_module("playwright.async_api")


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as tools:
        running = await tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield running
        await running.close()


@pytest.fixture
async def page(browser: Any) -> AsyncIterator[Any]:
    """A page whose scripts may not fail, and which loads nothing from elsewhere."""
    opened = await browser.new_page()
    troubles: list[str] = []
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("console", lambda said: troubles.append(said.text) if "Content Security Policy" in said.text else None)
    opened.set_default_timeout(20_000)
    yield opened
    assert not troubles


@pytest.fixture(autouse=True)
async def auditor(client: Client) -> Election:
    """Without one that watches who is away, and without a check of all copies, nobody says that all is well."""
    store = client.services.store
    vote = Election(store.keys, store.root, "the auditor of this test")
    await vote.stand()
    board, attendance = HealingStatusStore(store), Attendance()
    await board.say_checked(COPIES, {})
    attendance.seen(sessions_of(await store.bookies()))
    attendance.walked(Unsettled())
    await board.say_attendance(attendance, -1)
    return vote


async def test_the_overview_shows_what_all_doors_show(
    page: Any, client: Client, gateway: Gateway, auditor: Election
) -> None:
    await auditor.withdraw()
    await page.goto(f"{gateway.url}/")
    for text in ("1 error", "auditor-missing", "buckram autorecovery run", "states.md#auditor-missing"):
        await see(page, text)
    await auditor.stand()
    await see(page, WELL)


async def picture(page: Any, name: str) -> None:
    """Keep what is seen now, where the documentation's pictures are made."""
    pictures = os.environ.get("BUCKRAM_PICTURES")
    if pictures:
        await page.screenshot(path=str(Path(pictures) / name))


async def see(page: Any, text: str | re.Pattern[str]) -> None:
    await playwright.expect(page.locator("main")).to_contain_text(text, timeout=20_000)


async def test_each_page_and_the_actions_on_a_stream(
    page: Any, client: Client, gateway: Gateway, three_bookies: Cluster
) -> None:
    await page.goto(f"{gateway.url}/")
    await see(page, WELL)
    await see(page, "3 of 3 bookies serve")
    await page.get_by_role("link", name="Streams").click()
    await page.get_by_label("Namespace").select_option("shop")
    await see(page, "There are none.")
    await page.get_by_role("button", name="Create").click()
    await page.get_by_label("Name", exact=True).fill("orders")
    await page.get_by_role("dialog").get_by_role("button", name="Create").click()
    await page.get_by_role("link", name="orders").click()
    await see(page, "Stream shop/orders")
    await page.get_by_role("button", name="Follow").click()
    await until(lambda: gateway.tails.count == 1)
    await page.get_by_role("button", name="Append").click()
    await page.get_by_label("Key (optional)").fill("ann")
    await page.get_by_label("Value").fill('{"price": "<b>5</b>"}')
    await page.get_by_role("dialog").get_by_role("button", name="Append").click()
    await eventually(lambda: _end_is(client, 1))
    await page.get_by_role("button", name="Read").click()
    await see(page, '{"price": "<b>5</b>"}')
    await page.get_by_label("Shown as").select_option("hex")
    await page.get_by_role("button", name="Read").click()
    await see(page, "000000  7b 22 70 72")
    await page.get_by_role("button", name="Follow").click()
    await client.namespace("shop").info("orders")
    await until(lambda: gateway.tails.count == 1)
    await gateway.writers.append(_name(), lambda writer: writer.append(b"second"))
    await playwright.expect(page.get_by_role("log")).to_contain_text("second", timeout=20_000)
    await page.get_by_role("table").filter(has_text="Ledger").get_by_role("link").first.click()
    await see(page, "Bookies by fragment")
    await playwright.expect(page.locator("svg.ledger rect.held")).to_have_count(3)
    for title, text in (
        ("Databases", "Namespace"),
        ("Bookies", "bookie-2"),
        ("Replication", "Every ledger has all its copies"),
        ("Namespaces", "Namespaces"),
        ("Jobs", "There are none."),
        ("Audit", "Audit trail"),
        ("Ledgers", "Ledgers by id"),
    ):
        await page.get_by_role("navigation").get_by_role("link", name=title).click()
        await see(page, text)
    await page.get_by_role("link", name="Bookies").click()
    await three_bookies.kill(1)
    await see(page, "down")
    await page.get_by_role("link", name="Overview").click()
    await see(page, "2 of 3 bookies serve")
    await see(page, "bookie-down")
    await picture(page, "console.png")


async def test_buttons_that_a_purpose_refuses_are_off_and_say_why(page: Any, client: Client, gateway: Gateway) -> None:
    await client.namespace("shop").create_machine_log("counter")
    await page.goto(f"{gateway.url}/#/streams/shop/counter")
    await see(page, "machine")
    for name, why in (("Append", "execute commands"), ("Truncate", "a snapshot"), ("Delete", "--purpose machine")):
        button = page.get_by_role("button", name=name, exact=True)
        await playwright.expect(button).to_be_disabled()
        assert why in await button.get_attribute("title")


async def test_a_bookie_is_taken_out_only_where_the_cure_of_its_state_says_so(
    page: Any, client: Client, gateway: Gateway, three_bookies: Cluster
) -> None:
    await three_bookies.kill(1)
    await page.goto(f"{gateway.url}/#/bookies/bookie-1")
    await playwright.expect(page.get_by_role("button", name="Decommission")).to_be_visible()
    async with telling(client, "", registered=False) as bookie:
        await page.goto(f"{gateway.url}/#/bookies/{bookie.name}")
        await see(page, f"it answers at {bookie.name} and is not registered")
        assert await page.get_by_role("button", name="Decommission").count() == 0
        assert await page.get_by_role("button", name="Drain").count() == 0


async def test_objects_are_put_browsed_fetched_renamed_and_deleted(
    page: Any, client: Client, gateway: Gateway, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_bytes(b"<script>alert(1)</script>")
    async with client.objects("shop") as objects:
        await objects.put("2026/may/a.csv", b"1,2" * 40_000, metadata={"author": "<b>ann</b>"})
        for name in ("late/b.csv", "orders.parquet", "summary.pdf"):
            await objects.put(f"2026/may/{name}", b"x" * 1_234_567, expires_s=30 * 86_400)
    await page.goto(f"{gateway.url}/#/objects/shop")
    await page.get_by_role("link", name="2026/").click()
    await page.get_by_role("link", name="may/").click()
    await see(page, "author: <b>ann</b>")
    await upload(page, tmp_path / "report.html")
    await see(page, "report.html")
    await picture(page, "objects.png")
    async with page.expect_download() as fetching:
        await page.get_by_role("link", name="report.html").click()
    fetched = await fetching.value
    await fetched.save_as(tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"<script>alert(1)</script>"
    await upload(page, tmp_path / "report.html")
    await playwright.expect(page.locator("#banner")).to_contain_text("is there already")
    await page.get_by_role("button", name="Rename 2026/may/a.csv").click()
    await page.get_by_label("New name").fill("2026/b.csv")
    await page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    await page.get_by_role("navigation", name="Directories").get_by_role("link", name="2026").click()
    await see(page, "b.csv")
    await page.get_by_role("button", name="Delete 2026/b.csv").click()
    await playwright.expect(page.get_by_role("dialog")).to_contain_text("deleted for good")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await playwright.expect(page.locator("main")).not_to_contain_text("b.csv", timeout=20_000)
    await page.get_by_label("Names that begin with").fill("2026/m")
    await page.get_by_role("button", name="Show", exact=True).click()
    await see(page, "2026/may/report.html")
    async with client.objects("shop") as objects:
        left = [one.name for one in await objects.list()]
        assert left == [f"2026/may/{name}" for name in ("late/b.csv", "orders.parquet", "report.html", "summary.pdf")]


async def upload(page: Any, file: Path) -> None:
    await page.get_by_role("button", name="Upload").click()
    await page.get_by_label("File", exact=True).set_input_files(file)
    await page.get_by_role("dialog").get_by_role("button", name="Upload").click()
    await playwright.expect(page.get_by_role("dialog")).to_be_hidden()


async def test_the_page_says_that_the_gateway_is_away_and_goes_on_with_what_it_knows(page: Any, client: Client) -> None:
    async with serving(client) as gateway:
        await page.goto(f"{gateway.url}/")
        await see(page, WELL)
    await playwright.expect(page.locator("#banner")).to_contain_text("does not answer", timeout=20_000)
    await see(page, WELL)


async def test_one_logs_in_once_and_sees_what_one_may_do(page: Any, client: Client) -> None:
    async with guarded(client) as place:
        await place.grant("token:alice", "shop", "read")
        await page.goto(f"{place.gateway.url}/")
        await page.get_by_label("Token").fill(await place.token("alice"))
        await page.get_by_role("dialog").get_by_role("button", name="Log in").click()
        await see(page, WELL)
        assert await page.get_by_role("link", name="Audit").count() == 0
        await page.reload()
        await see(page, WELL)
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="Log out").click()
        await playwright.expect(page.get_by_label("Token")).to_be_visible()


async def test_a_tenant_sees_what_is_his_and_nothing_fails(page: Any, client: Client) -> None:
    """Where an administrator sees the whole cluster, the pages of others are smaller, or are not there."""
    await client.namespaces.create("payroll")
    for stream in ("payroll/q3", "shop/orders"):
        namespace, _, name = stream.partition("/")
        async with client.namespace(namespace).writer(name) as writer:
            await writer.append(b"x")
    async with guarded(client) as place:
        await place.grant("token:alice", "shop", "read")
        await page.goto(f"{place.gateway.url}/")
        await page.get_by_label("Token").fill(await place.token("alice"))
        await page.get_by_role("dialog").get_by_role("button", name="Log in").click()
        await see(page, WELL)
        main, menu = page.locator("main"), page.get_by_role("navigation")
        await see(page, "This covers what you may see")
        for text in ("of all namespaces", "serve", "Auditor"):
            assert text not in await main.inner_text()
        assert await menu.get_by_role("link", name="Replication").count() == 0
        for title, text in (
            ("Streams", "orders"),
            ("Databases", "Namespace"),
            ("Objects", "Namespace"),
            ("Namespaces", "Namespaces"),
            ("Bookies", "bookie-2"),
            ("Ledgers", "shop/orders"),
        ):
            await menu.get_by_role("link", name=title).click()
            await see(page, text)
            assert "payroll" not in await main.inner_text()
            await playwright.expect(page.locator("#banner")).to_be_hidden()
            if title == "Bookies":
                assert await main.get_by_role("link").count() == 0
        await main.get_by_role("table").get_by_role("link").first.click()
        await see(page, "Bookies by fragment")
        await playwright.expect(page.locator("#banner")).to_be_hidden()
        await page.goto(f"{place.gateway.url}/#/replication")
        await playwright.expect(page.locator("#banner")).to_contain_text("no administrator of the cluster")


async def test_keys_alone_are_enough(page: Any, gateway: Gateway) -> None:
    await page.goto(f"{gateway.url}/")
    await see(page, WELL)
    await page.keyboard.press("Tab")
    await playwright.expect(page.get_by_text("Skip to the page")).to_be_focused()
    for _ in range(3):
        await page.keyboard.press("Tab")
    await playwright.expect(page.get_by_role("link", name="Streams")).to_be_focused()
    await page.keyboard.press("Enter")
    await see(page, "Namespace")
    await playwright.expect(page.locator("main")).to_be_focused()


async def _end_is(client: Client, end: int) -> bool:
    return (await client.namespace("shop").info("orders")).end >= end


def _name() -> Any:
    from buckram.core.streams.names import stream_name

    return stream_name("shop/orders")
