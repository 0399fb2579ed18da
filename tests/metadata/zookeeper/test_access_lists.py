"""What whoever has a login may do with the nodes of a cluster that shares its ledger tree."""

from __future__ import annotations

import pytest

from buckram.metadata.zookeeper.access_lists import READ_ONLY, access_list, others_may
from buckram.metadata.zookeeper.ledger_managers import SPECIAL


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/prod/ledgers", "cr"),
        ("/prod/ledgers/LAYOUT", "r"),
        ("/prod/ledgers/INSTANCEID", "r"),
        ("/prod/ledgers/available/readonly/1.2.3.4:5", "r"),
        ("/prod/ledgers/cookies/1.2.3.4:5", "r"),
        ("/prod/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL0000000001", "r"),
        ("/prod/ledgers/00", "cdrw"),
        ("/prod/ledgers/00/0000/L0005", "cdrw"),
        ("/prod/ledgers/idgen-long/HOB-0000000001/ID-0000000007", "cdrw"),
        ("/prod/ledgers2", ""),
        ("/prod/ledgersX/00", ""),
        ("/prod", ""),
        ("/buckram/prod%2Fledgers/security/signing/1", ""),
        ("/", ""),
    ],
)
def test_others_use_the_ledger_tree_and_nothing_else(path: str, wanted: str) -> None:
    assert others_may("/prod/ledgers", path) == wanted


def test_every_child_of_the_root_that_is_no_ledgers_is_read_only_but_the_counters() -> None:
    assert set(SPECIAL) - set(READ_ONLY) == {"idgen", "idgen-long"}


def test_nobody_else_changes_access_lists() -> None:
    from kazoo.security import Permissions

    for others in ("cr", "r", "cdrw"):
        own, all_others = access_list(others, "sasl", "buckram")
        assert (own.perms, own.id.id) == (Permissions.ALL, "buckram")
        assert not all_others.perms & Permissions.ADMIN
        assert all_others.id.scheme == "world"
    (own,) = access_list("", "sasl", "buckram")
    assert own.id == ("sasl", "buckram")
