"""buckram:// URIs."""

from __future__ import annotations

import pytest

from buckram.errors import ConfigError
from buckram.metadata.service.uri import ServiceUri, parse_service


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("buckram://h:1", ServiceUri((("h", 1),))),
        ("buckram://h,[::1]:2/", ServiceUri((("h", 3181), ("::1", 2)))),
        ("BUCKRAM+TLS://a.b:1,c:2/some-id", ServiceUri((("a.b", 1), ("c", 2)), "some-id", True)),
    ],
)
def test_uris_that_are_understood(text: str, uri: ServiceUri) -> None:
    assert parse_service(text) == uri
    assert parse_service(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("buckram:h:1", "two slashes"),
        ("buckram://", "host:port"),
        ("buckram://h:0", "host:port"),
        ("buckram://h:99999", "host:port"),
        ("buckram://user@h:1", "host:port"),
        ("buckram://h:1/a/b", "instance id"),
    ],
)
def test_uris_that_are_not(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_service(text)


def test_other_schemes_are_others() -> None:
    assert parse_service("zk://h:1/ledgers") is None
