"""Each setting, command and metric has a place in a page that explains: a how-to, a tutorial or an explanation.

The generated reference has all of them by itself, and tells nobody when to use one. The page of a bookie's HTTP API is
written by hand; it has every path.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from scripts.metrics_page import metrics

from buckram.bookie.pages.status_pages import SERVED
from buckram.cli.app import app
from buckram.config import SECTIONS
from buckram.serve.admin.bookie_pages import BookiePages
from buckram.serve.admin.cluster_pages import AdminClusterPages
from buckram.serve.admin.job_pages import AdminJobPages
from buckram.serve.admin.ledger_pages import AdminLedgerPages

DOCS = Path(__file__).parents[2] / "docs"
FOLDERS = ("howto", "tutorial", "explanation")
MAPPING = "from-apache.md"
"""Names of Apache's beside ours, which explains neither."""
ALLOWED: dict[str, str] = {}
"""What needs no sentence, with its reason; ten at most."""


@cache
def every_setting() -> tuple[tuple[str, str], ...]:
    return tuple((section, field.name) for section, cls in SECTIONS.items() for field in dataclasses.fields(cls))


_KEYS = Counter(key for _, key in every_setting())


@cache
def text() -> str:
    pages = (page for folder in FOLDERS for page in sorted((DOCS / folder).rglob("*.md")))
    return "\n\n".join(page.read_text() for page in pages if page.name != MAPPING)


def settings_in(page: str) -> set[str]:
    """Settings that a page names: in a paragraph beside their `[section]`, or as `section.key`, or by their variable
    of the environment. A key of several words that one section alone has may stand by itself."""
    found = set()
    for paragraph in re.split(r"\n\s*\n", page):
        sections = set(re.findall(r"\[(\w+)\]", paragraph))
        words = set(re.findall(r"(?<![\w/-])\w+(?![\w/-])", " ".join(re.findall(r"`([^`]+)`", paragraph))))
        words |= set(re.findall(r"^(\w+) *=", paragraph, re.MULTILINE))
        qualified = set(re.findall(r"\b\w+\.\w+\b|\bBUCKRAM_\w+", paragraph))
        for section, key in every_setting():
            alone = "_" in key and _KEYS[key] == 1
            by_name = key in words and (section in sections or alone)
            if by_name or not qualified.isdisjoint((f"{section}.{key}", f"BUCKRAM_{section}_{key}".upper())):
                found.add(f"{section}.{key}")
    return found


def commands(group: click.Command = app, above: str = "buckram") -> Iterator[str]:
    """Each noun and verb that does something by itself, such as `buckram ledger show`."""
    if not isinstance(group, click.Group):
        yield above
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, f"{above} {name}")


def names_command(page: str, command: str) -> bool:
    """Whether a page has the command's words, with options of the first one at most between them."""
    first, *rest = command.split()
    return bool(re.search(rf"\b{first}(?: --?[\w-]+(?:[ =]\S+)?)* {re.escape(' '.join(rest))}(?![\w-])", page))


def test_each_setting_is_explained() -> None:
    every = {f"{section}.{key}" for section, key in every_setting()}
    assert len(every) > 100
    assert sorted(every - settings_in(text()) - set(ALLOWED)) == []


def test_each_command_is_explained() -> None:
    every = list(commands())
    assert len(every) > 100
    assert [command for command in every if not names_command(text(), command) and command not in ALLOWED] == []


def test_each_metric_is_explained() -> None:
    named = set(re.findall(r"\bbuckram_\w+", text()))
    assert sorted({metric.name for metric in metrics()} - named - set(ALLOWED)) == []


def test_each_path_of_a_bookie_is_on_its_page() -> None:
    """A row has its first path whole, and others by what is different: `/api/v1/bookie/state`, `state/readonly`."""
    unused: Any = SimpleNamespace(bookie=None)  # Nothing is asked of it: the groups only say which paths they have.
    groups = (
        BookiePages(unused, unused, unused),
        AdminLedgerPages(unused),
        AdminClusterPages(unused, unused),
        AdminJobPages(unused),
    )
    paths = {one.path.replace(":path}", "}") for group in groups for one in group.operations()} | set(SERVED)
    named = set()
    for line in (DOCS / "reference" / "http.md").read_text().splitlines():
        first, *others = re.findall(r"`([\w/{}]+)`", line.partition(" | ")[0]) or [""]
        named |= {first, *others, *(f"{first.rpartition('/')[0]}/{other}" for other in others)}
        named |= {f"{first.rpartition('/')[0].rpartition('/')[0]}/{other}" for other in others}
    assert len(paths) > 30
    assert sorted(paths - named) == []


def test_few_are_excepted_and_each_says_why() -> None:
    every = {metric.name for metric in metrics()} | set(commands())
    every |= {f"{section}.{key}" for section, key in every_setting()}
    assert set(ALLOWED) <= every
    assert len(ALLOWED) <= 10
    assert all(len(reason) > 20 for reason in ALLOWED.values())


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("`[bookie] port`", {"bookie.port"}),
        ("the `port` of a bookie", set()),
        ("[tls]\nmode = 'required'\n", {"tls.mode"}),
        ("`[tls]`\n\n`mode`", set()),
        ("`speculative_read_ms`", {"client.speculative_read_ms"}),
        ("`believe_clock_after_s`", set()),
        ("`BUCKRAM_NET_MAX_FRAME_BYTES`", {"net.max_frame_bytes"}),
        ("`log.level`", {"log.level"}),
    ],
)
def test_a_setting_is_found_by_its_section(page: str, found: set[str]) -> None:
    assert settings_in(page) == found


def test_a_command_is_found_by_its_words() -> None:
    assert names_command("`buckram --context prod stream list`", "buckram stream list")
    assert not names_command("`buckram stream`, and a list", "buckram stream list")
    assert not names_command("`buckram stream cursor-list`", "buckram stream cursor")
