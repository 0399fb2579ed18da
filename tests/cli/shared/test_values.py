"""Times as people type them: local where they have no zone, and it is said which zone that is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from buckram.cli.app import run
from buckram.cli.shared import values
from buckram.errors import InvalidArgument

NOW = 1_795_000_000_000_000


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "utc", "said"),
    [
        ("2026-11-21T08:00", "2026-11-21T07:00:00.000000Z", "2026-11-21T08:00:00+01:00 (CET)"),
        ("2026-07-21", "2026-07-20T22:00:00.000000Z", "2026-07-21T00:00:00+02:00 (CEST)"),
        ("2026-11-21T08:00Z", "2026-11-21T08:00:00.000000Z", ""),
        ("2026-11-21T08:00-03:00", "2026-11-21T11:00:00.000000Z", ""),
        ("@1795161600", "2026-11-20T08:00:00.000000Z", ""),
        ("2h", values.iso(NOW - 7200 * 1_000_000), ""),
    ],
)
def test_a_time_without_a_zone_is_local(
    berlin: None, capsys: pytest.CaptureFixture[str], text: str, utc: str, said: str
) -> None:
    assert values.iso(values.moment("--since", text, NOW)) == utc
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (f"--since {text}: local time, {said}\n" if said else "")


@pytest.mark.parametrize("text", ["", "yesterday", "@x", "@nan", "@inf", "2026-13-01", "0001-01-01", "x" * 200])
def test_what_is_no_time_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(InvalidArgument, match="local time") as refused:
        values.moment("--since", text, NOW)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "command",
    [
        ("audit", "search"),
        ("stream", "read"),
        ("stream", "tail"),
        ("stream", "truncate"),
        ("stream", "offload"),
        ("stream", "fork"),
        ("db", "fork"),
        ("db", "backup"),
        ("plan", "full"),
    ],
)
def test_the_help_of_each_option_says_which_times_it_takes(
    command: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    assert "(local time)" in " ".join(capsys.readouterr().out.split())
