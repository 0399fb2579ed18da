"""--limit of servers: every limit that an error names is an option, and what is given wrong is said in a line."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import buckram
from buckram.cli.shared.serving import ChosenLimits
from buckram.errors import InvalidArgument
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.hrana.limits import HTTP_LIMITS, HranaLimits
from buckram.serve.http.limits import HttpLimits
from buckram.state.db.settings import DatabaseLimits

SOURCES = Path(buckram.__file__).parent
NAMED = (
    re.compile(r"(?:option_of|limit_named|_full)\(\s*(?:f?\"[^\"]*\",\s*)?['\"](\w+)['\"]\)"),
    re.compile(r"\boption=['\"](\w+)['\"]"),
)


def names(*kinds: type) -> set[str]:
    return {field.name for kind in kinds for field in fields(kind)}


@pytest.mark.parametrize(
    ("folders", "kinds"),
    [
        (("state/db", "errors", "serve/hrana", "serve/http"), (DatabaseLimits, HranaLimits, HttpLimits)),
        (
            ("state/db", "errors", "serve/gateway", "serve/hrana", "serve/http"),
            (GatewayLimits, HranaLimits, DatabaseLimits, HttpLimits),
        ),
    ],
    ids=["db serve", "gateway"],
)
def test_every_limit_that_an_error_names_is_an_option(folders: tuple[str, ...], kinds: tuple[type, ...]) -> None:
    texts = [file.read_text() for folder in folders for file in (SOURCES / folder).rglob("*.py")]
    named = {name for text in texts for one in NAMED for name in one.findall(text)}
    assert any(one.findall(text) for text in texts for one in NAMED[1:])
    assert named
    assert named - names(*kinds) == set()


def test_values_go_to_the_limits_that_have_them() -> None:
    given = ["result_bytes=128MiB", "transaction_s=1.5s", "streams=7", "connections=9", "drain_s=3s"]
    database, hrana, http = ChosenLimits(given).of(DatabaseLimits(), HranaLimits(), HTTP_LIMITS)
    assert database == DatabaseLimits(result_bytes=128 * 1024 * 1024, transaction_s=1.5)
    assert hrana == HranaLimits(streams=7)
    assert http.connections == 9
    assert (http.drain_s, http.body_bytes) == (3, HTTP_LIMITS.body_bytes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["streams"], "needs NAME=VALUE"),
        (["streams="], "needs NAME=VALUE"),
        (["streams=1", "streams=2"], "given twice"),
        (["stream=1"], "there is no such limit"),
        (["streams=some"], "needs a whole number"),
        (["streams=0"], "streams = 0: needs a whole number from 1"),
        (["transaction_s=1ms"], "from 0.05 to 3600"),
        (["drain_s=1.5s"], "drain_s = 1.5: needs a whole number"),
        (["result_bytes=many"], "needs a size"),
    ],
)
def test_what_is_wrong_is_said(given: list[str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        ChosenLimits(given).of(DatabaseLimits(), HranaLimits(), HttpLimits())
