"""Backups by policy: places, names of files, what is due and what goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.db.backups import (
    Backup,
    BackupRecord,
    decode_kept,
    directory_of,
    encode_kept,
    file_name,
    files_of,
    is_due,
    is_old,
    location_of,
    parse_places,
    superseded,
    unfinished_of,
)
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy, check_overrides
from buckram.errors import ConfigError, InvalidArgument, MalformedRecord

NAME = StreamName("shop", "main")
UID, OTHER = "00ff00ff00ff00ff", "1234123412341234"
HOUR, NOW = 3_600_000_000, 1_795_900_000_000_000
POLICY = Policy(backup_every_s=3600.0, backup_to="nightly")
SHA = "ab" * 32
NEWEST = Backup(UID, "nightly", file_name(UID, 7, NOW, SHA), 7, 4096, SHA, NOW)


# -- settings ---------------------------------------------------------------------------------------------


def test_places_are_those_that_an_operator_lists() -> None:
    assert parse_places("") == {}
    found = parse_places(" nightly=/mnt/backups/  off-site=s3://bucket/a ")
    assert found == {"nightly": "/mnt/backups", "off-site": "s3://bucket/a"}
    assert location_of(NAME, POLICY, found) == "/mnt/backups"
    assert directory_of("/mnt/backups", NAME) == "/mnt/backups/shop/main"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nightly", "'nightly': needs NAME=LOCATION"),
        ("=/mnt", "backup_to ''"),
        ("a/b=/mnt", "backup_to 'a/b'"),
        ("a=relative", "a 'relative': needs an absolute path"),
        ("a=/x a=/y", "'a' is there twice"),
        ("a=s3://me:secret@bucket", "has a name or a password in it"),
    ],
)
def test_a_list_of_places_that_is_wrong_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_places(text)
    assert says in str(refused.value)
    assert "[janitor] backup_places" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_place_that_is_not_listed_is_named_with_the_setting() -> None:
    with pytest.raises(InvalidArgument, match=r"backup_to = 'nightly', and .* \(it has: a, b\).*backup_places") as said:
        location_of(NAME, POLICY, {"b": "/b", "a": "/a"})
    assert "buckram stream set shop/main" in str(said.value)
    with pytest.raises(InvalidArgument, match="it has: none"):
        location_of(NAME, POLICY, {})
    with pytest.raises(InvalidArgument, match="backup_to names no place"):
        location_of(NAME, Policy(backup_every_s=1.0), {"a": "/a"})


def test_settings_are_checked_before_they_are_stored() -> None:
    good = {"backup_every_s": 60, "backup_to": "off-site.2", "backup_keep": 1}
    assert check_overrides(good) == {"backup_every_s": 60.0, "backup_to": "off-site.2", "backup_keep": 1}
    assert check_overrides({"backup_every_s": 0, "backup_to": ""}) == {"backup_every_s": 0.0, "backup_to": ""}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("backup_to", "/mnt/mine"),
        ("backup_to", "s3://bucket/mine"),
        ("backup_to", "../up"),
        ("backup_to", ".hidden"),
        ("backup_to", "two words"),
        ("backup_to", "a" * 65),
        ("backup_to", 7),
        ("backup_every_s", -1),
        ("backup_every_s", True),
        ("backup_every_s", None),
        ("backup_keep", 0),
        ("backup_keep", 1001),
        ("backup_keep", 1.5),
    ],
)
def test_a_setting_that_is_wrong_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=setting):
        check_overrides({setting: value})


# -- files ------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**19), st.integers(0, 4 * 10**15))
def test_a_name_says_whose_backup_it_is_of_which_state_and_of_when(offset: int, time: int) -> None:
    name = file_name(UID, offset, time, SHA)
    (found,) = files_of(UID, [name])
    assert found == (offset, time - time % 1_000_000, name, SHA[:16])
    assert files_of(OTHER, [name]) == []


def test_only_files_of_the_database_are_looked_at() -> None:
    mine = file_name(UID, 7, NOW, SHA)
    strange = [
        f"{UID}-x-20261128T214500Z-{SHA[:16]}.db",
        f"{UID}-{7:020d}-20261328T214500Z-{SHA[:16]}.db",
        f"{UID}-{7:020d}-20261128T214500Z.db",
        f"{mine}.bak",
        f"x{mine}",
        "README",
        file_name(OTHER, 9, NOW, SHA),
    ]
    assert [one.name for one in files_of(UID, [*strange, mine])] == [mine]
    left = f".{mine}.0123.unfinished"
    assert unfinished_of(UID, [left, mine, f".{file_name(OTHER, 7, NOW, SHA)}.0.unfinished", f".{UID}-x"]) == [left]


def test_the_newest_states_stay_and_what_is_written_down() -> None:
    names = [file_name(UID, offset, NOW - 5 * HOUR if offset == 9 else NOW, SHA) for offset in (10, 2, 9, 1, 100)]
    files = files_of(UID, names)
    assert [one.offset for one in files] == [1, 2, 9, 10, 100]
    assert superseded(files, 2, files[-1].name) == [one.name for one in files[:3]]
    assert superseded(files, 2, files[0].name) == [one.name for one in files[1:3]]
    assert superseded(files, 5, "") == superseded(files, 9, "") == superseded([], 1, "") == []
    assert len(superseded(files, 0, "")) == 4


# -- when -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "now", "due"),
    [
        (BackupRecord(), NOW, True),
        (BackupRecord(), None, True),
        (BackupRecord(NEWEST), NOW + HOUR - 1, False),
        (BackupRecord(NEWEST), NOW + HOUR, True),
        (BackupRecord(NEWEST), None, False),
        (BackupRecord(NEWEST, "the place is away"), NOW + 1, False),
        (BackupRecord(NEWEST._replace(place="other")), NOW, True),
        (BackupRecord(NEWEST._replace(place="other")), None, True),
        (BackupRecord(NEWEST._replace(time=NOW + HOUR - 1)), NOW, False),
        (BackupRecord(NEWEST._replace(time=NOW + HOUR)), NOW, True),
    ],
)
def test_a_backup_is_due_when_the_newest_is_old_and_nothing_is_while_the_time_is_in_doubt(
    kept: BackupRecord, now: int | None, due: bool
) -> None:
    assert is_due(kept, POLICY, now, now) is due


def test_what_was_stamped_in_a_doubt_is_held_back_and_is_not_taken_for_one_to_come() -> None:
    assert not is_old(NOW, 3600.0, NOW - 9 * HOUR, NOW)


# -- what is written down ---------------------------------------------------------------------------------


def test_what_is_written_down_comes_back() -> None:
    for kept in (BackupRecord(), BackupRecord(NEWEST, "away", 5), BackupRecord(None, "away", 5)):
        assert decode_kept("k", encode_kept(kept)) == kept


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 2}',
        b'{"format": 1, "newest": {"uid": 1}, "trouble": "", "since": 0}',
        b'{"format": 1, "newest": null, "trouble": "", "since": "x"}',
    ],
)
def test_what_is_no_such_record_is_named(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match=r"^the key: "):
        decode_kept("the key", value)
