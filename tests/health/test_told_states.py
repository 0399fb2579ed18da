"""States that follow from what a bookie says of itself, and from how it is registered, seen at every door."""

from __future__ import annotations

import time

import pytest
from tests.health.conftest import Site
from tests.health.telling import OWN, TB, telling

from buckram import __version__
from buckram.core.cluster.bookie_report import BookieReport, Collected, Keeps, KeptGarbage
from buckram.core.ledgers.service_info import ADMISSION_PROPERTY
from buckram.core.wire.introduction import INCARNATION_PROPERTY
from buckram.core.wire.messages import Trouble
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store

pytestmark = pytest.mark.asyncio(loop_scope="module")
GB = 10**9


def report(**told: object) -> BookieReport:
    return BookieReport(__version__, **told)  # type: ignore[arg-type]


# -- what it says -----------------------------------------------------------------------------------------


async def test_files_and_connections_that_run_short(site: Site) -> None:
    async with telling(site.client) as bookie:
        bookie.say(report(open_files=91, most_files=100))
        assert "91 of 100" in (await site.doors.expect("descriptors-short", "teller"))["why"]
        bookie.say(report(connections=95, most_connections=100))
        assert "95 of 100" in (await site.doors.expect("connections-short", "teller"))["why"]
        await site.doors.gone("descriptors-short")


async def test_several_releases(site: Site) -> None:
    async with telling(site.client) as bookie:
        bookie.say(BookieReport("0.0.1"))
        assert "2 releases" in (await site.doors.expect("mixed-releases", "0.0.1: teller"))["why"]


async def test_bytes_that_wait_to_be_removed(site: Site) -> None:
    async with telling(site.client) as bookie:
        kept = (KeptGarbage(Keeps.SECOND_LOOK, "no second look", 3 * GB, 7),)
        bookie.say(report(collection=Collected(0, 3 * GB, 0, kept)), free=TB - 4 * GB)
        found = await site.doors.expect("waiting-bytes", "teller")
        assert "3000000000 bytes absent without a record" in found["why"]


async def test_a_certificate_that_has_ended(site: Site) -> None:
    async with telling(site.client) as bookie:
        bookie.say(report(certificate="/etc/own.pem", certificate_ends_s=int(time.time()) - 7_200))
        found = await site.doors.expect("certificate-ended", "teller")
        assert (found["why"], "/etc/own.pem" in found["do"]) == ("it ended 2 h ago", True)


@pytest.mark.parametrize(
    ("said", "what", "state", "why"),
    [
        (report(), "bad records", "bad-records", "as this test has it"),
        (report(), "limbo", "limbo", "as this test has it"),
        (report(), "flood", "bookie-trouble", "flood: as this test has it"),
        (b"no JSON", "", "bookie-trouble", "the report of bookie teller"),
    ],
)
async def test_what_is_wrong_with_it(site: Site, said: BookieReport | bytes, what: str, state: str, why: str) -> None:
    async with telling(site.client) as bookie:
        bookie.say(said, (Trouble(what, "as this test has it"),) if what else ())
        assert why in (await site.doors.expect(state, "teller"))["why"]


async def test_a_bookie_that_takes_no_new_entries_and_says_why(site: Site) -> None:
    async with telling(site.client, readonly=True) as bookie:
        bookie.say(report(readonly_why="a write has failed"))
        assert (await site.doors.expect("bookie-read-only", "teller"))["why"] == "a write has failed"


# -- how it is registered ---------------------------------------------------------------------------------


async def test_a_bookie_that_answers_and_is_not_registered(site: Site) -> None:
    """Nobody is told to take it out."""
    async with telling(site.client, "", registered=False) as bookie:
        found = await site.doors.expect("bookie-unregistered", bookie.name)
        assert "decommission" not in found["do"]


@pytest.mark.parametrize(("properties", "state"), [(OWN, "bookie-without-cookie"), ({}, "apache-without-cookie")])
async def test_a_bookie_that_is_no_member(site: Site, properties: dict[str, str], state: str) -> None:
    async with telling(site.client, member=False, properties=properties):
        found = await site.doors.expect(state, "teller")
        assert found["do"].startswith("do not restart it")


async def test_a_bookie_that_takes_adds_to_ledgers_which_nobody_made(site: Site) -> None:
    async with telling(site.client, properties={**OWN, ADMISSION_PROPERTY: "any"}):
        found = await site.doors.expect("open-admission", "teller")
        assert 'without admission = "any"' in found["do"]


async def test_two_bookies_on_copies_of_one_directory(site: Site) -> None:
    bookie = site.client.services.bookies.info("bookie-0")
    assert bookie is not None
    assert bookie.incarnation is not None
    async with telling(site.client, properties={INCARNATION_PROPERTY: bookie.incarnation}):
        found = await site.doors.expect("directory-used-twice", "bookie-0, teller")
        assert bookie.incarnation in found["why"]


async def test_a_registration_without_an_address(site: Site) -> None:
    sessions = await open_store(site.cluster.uri)
    assert isinstance(sessions, TreeStore)
    key = sessions.layout.registration("nowhere", readonly=True)
    try:
        await sessions.keys.create(key, b"", ephemeral=True)
        found = await site.doors.expect("bad-registration", key, also=("bookie-silent", "apache-without-cookie"))
        assert "no client can reach it" in found["why"]
    finally:
        await sessions.close()
    await site.doors.gone("bad-registration")
