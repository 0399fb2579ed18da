"""Where janitors may keep history."""

from __future__ import annotations

import pytest

from buckram.core.streams.external.history import SETTING, parse_offload_places
from buckram.errors import ConfigError, InvalidArgument

PLACES = parse_offload_places("shop=/srv/shop shop=s3://bucket/shop *=/srv/all bank=/srv/bank")


def test_a_namespace_has_its_own_places_and_those_of_all() -> None:
    assert PLACES.of("shop") == ("/srv/shop", "s3://bucket/shop", "/srv/all")
    assert PLACES.of("x") == ("/srv/all",)
    PLACES.check_policy("shop", "/srv/shop")
    for location in ("/srv/bank", "/srv", "/srv/shop/deeper", "/srv/shop/../bank", "file:///srv/shop"):
        with pytest.raises(InvalidArgument, match="offload_places"):
            PLACES.check_policy("shop", location)


@pytest.mark.parametrize(
    ("directory", "may"),
    [
        ("/srv/shop/shop/orders/u1", True),
        ("s3://bucket/shop/shop/orders/u1", True),
        ("/srv/all/shop/orders/u1", True),
        ("/srv/all/shop/orders/u2", False),
        ("/srv/all/bank/orders/u1", False),
        ("/srv/bank/shop/orders/u1", False),
        ("/srv/all/shop/../bank/u1", False),
        ("/srv/all/shop/orders::http://attacker/u1", False),
        ("/srv/all/shop", False),
        ("/etc/u1", False),
        ("/srv/allshop/orders/u1", False),
    ],
)
def test_a_streams_files_are_in_its_own_directory(directory: str, may: bool) -> None:
    why = PLACES.why_not(directory, "shop", "u1")
    assert (why == "") == may
    assert may or SETTING in why


@pytest.mark.parametrize(
    ("directory", "may"),
    [
        ("/srv/shop/shop/orders/u1", True),
        ("s3://bucket/shop/shop/orders/u1", True),
        ("/srv/all/bank/orders/u1", True),
        ("/srv/shop/bank/orders/u1", False),
        ("/srv/shop/deeper/shop/orders/u1", False),
        ("/srv/shop/../bank/shop/orders/u1", False),
        ("http://attacker/srv/shop/shop/orders/u1", False),
        ("simplecache::http://attacker/shop/orders/u1", False),
        ("/shop/orders/u1", False),
        ("u1", False),
    ],
)
def test_a_server_reads_history_where_it_is_listed(directory: str, may: bool) -> None:
    why = PLACES.why_not_read(directory)
    assert (why == "") == may
    assert may or SETTING in why


def test_of_a_stream_that_is_gone_the_uid_is_known() -> None:
    assert PLACES.why_not("/srv/bank/bank/ledger/u9", "", "u9") == ""
    assert PLACES.why_not("/srv/bank/bank/ledger/u9", "", "u1")
    assert PLACES.why_not("/srv/bank/bank/ledger/u9", "", "")


@pytest.mark.parametrize("text", ["/srv", "shop=history", "shop=", "a/b=/srv", "=/srv"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="offload_places"):
        parse_offload_places(text)
