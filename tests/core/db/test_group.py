"""Groups and their parts as records, and what is refused."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.db.group import GROUP, PART, Group, PageChange, Receipt, decode_group, encode_group, kind_of
from buckram.core.streams.records.codecs import Codec
from buckram.errors import UnknownCommand

_GROUPS = st.builds(
    Group,
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(st.builds(Receipt, st.text(max_size=20), st.text(max_size=20)), max_size=3),
    st.lists(
        st.builds(
            PageChange,
            st.integers(1, 2**32 - 1),
            st.lists(st.tuples(st.integers(0, 4095), st.binary(max_size=50)), max_size=4),
        ),
        max_size=4,
    ),
)


@given(_GROUPS)
def test_a_group_is_decoded_as_it_was(group: Group) -> None:
    payload = encode_group(group, Codec())
    assert kind_of(payload) == GROUP
    assert decode_group(payload, Codec()) == group


def test_what_is_no_group_is_refused() -> None:
    codec = Codec()
    group = Group(1, 2, 3, 4, [], [PageChange(1, [(0, bytes(2000))])])
    payload = encode_group(group, codec)
    assert len(payload) < 200
    for bad in (b"", b"\1", b"\2\1", b"\1\7" + payload[2:], os.urandom(100)):
        with pytest.raises(UnknownCommand):
            kind_of(bad)
    for bad in (payload[:-1], payload[:20], payload[:30] + b"\7" + payload[31:]):
        with pytest.raises(UnknownCommand):
            decode_group(bad, codec)
    assert kind_of(b"\1" + bytes([PART])) == PART
