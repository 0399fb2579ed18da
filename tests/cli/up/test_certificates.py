"""Certificates of `buckram up --secure`: which are made anew and when, and that nobody is shut out by it."""

from __future__ import annotations

import os
import ssl
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509

from buckram.cli.up.security_files import LOOK_S, Certificates, Renewing
from buckram.core.security.certificates import life_of
from buckram.errors import ConfigError, InvalidArgument
from buckram.runtime.net.security.certificate_authority import AUTHORITY_DAYS, DAYS, Authority

DAY_S = 86_400.0


class At:
    """The time, moved by hand."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def serials(of: Certificates) -> dict[str, int]:
    return {one.name: x509.load_pem_x509_certificate(one.file.read_bytes()).serial_number for one in of.shown()}


def verifies(ca: bytes, leaf: Path, at_s: float) -> None:
    """Raise as a client does that trusts only this authority, at that time."""
    authority = x509.load_pem_x509_certificate(ca)
    certificate = x509.load_pem_x509_certificate(leaf.read_bytes())
    certificate.verify_directly_issued_by(authority)
    for one in (authority, certificate):
        assert one.not_valid_before_utc.timestamp() <= at_s <= one.not_valid_after_utc.timestamp()


def test_each_is_made_anew_when_less_than_a_third_of_its_life_is_left(tmp_path: Path) -> None:
    clock = At()
    known = Certificates(tmp_path / "security", clock)
    assert known.keep("bookie", "zookeeper") == []
    made, begun = serials(known), clock.now
    assert set(made) == {"ca", "bookie", "zookeeper"}
    clock.now = begun + (DAYS * 2 / 3 - 2) * DAY_S
    assert (known.keep("bookie", "zookeeper"), serials(known)) == ([], made)
    clock.now = begun + (DAYS * 2 / 3 + 2) * DAY_S
    assert [one.state(clock()) for one in known.shown()] == ["good", "due", "due"]
    assert known.keep() == ["bookie", "zookeeper"]
    after = serials(known)
    assert {name for name in made if made[name] != after[name]} == {"bookie", "zookeeper"}
    both = known.folder / "zookeeper.both.pem"
    assert known.file("zookeeper").read_text() in both.read_text()
    assert (known.folder / "zookeeper.key").read_text() in both.read_text()
    clock.now = begun + (AUTHORITY_DAYS * 2 / 3 + 2) * DAY_S
    assert "ca" in known.keep()
    private = [*known.folder.glob("*.key"), both, known.folder / "certificates.lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE(known.folder.stat().st_mode) == 0o700


def test_an_authority_that_is_made_anew_counts_beside_the_one_before(tmp_path: Path) -> None:
    authority, now = Authority(tmp_path, days=10), time.time()
    old = authority.certificate.read_bytes()
    before = authority.bookie("before", ["localhost"], days=5).certificate
    authority.renew()
    new = authority.certificate.read_bytes()
    after = authority.bookie("after", ["localhost"]).certificate
    assert new != old
    for ca in (old, new):
        for leaf in (before, after):
            verifies(ca, leaf, now)
    assert life_of(new.decode()).ends_s > life_of(old.decode()).ends_s
    ssl.create_default_context(cafile=str(authority.certificate))


def test_one_is_renewed_by_its_file_and_what_is_none_is_refused(tmp_path: Path) -> None:
    known = Certificates(tmp_path)
    known.keep("bookie", "gateway")
    before = serials(known)
    name = known.named(tmp_path / "gateway.pem")
    known.renew([name])
    assert {one for one in before if before[one] != serials(known)[one]} == {"gateway"}
    with pytest.raises(InvalidArgument, match="known are ca, bookie, gateway"):
        known.renew(["etcd"])
    with pytest.raises(InvalidArgument, match="is none of the certificates"):
        known.named(tmp_path / "bookie.key")
    known.file("bookie").write_text("nothing")
    with pytest.raises(ConfigError, match=r"bookie\.pem: no certificate that can be read.*remove it"):
        known.shown()
    known.file("bookie").unlink()
    known.keep("bookie")
    assert set(serials(known)) == set(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_makes_them_anew_for_whom_they_are(tmp_path: Path) -> None:
    known = Certificates(tmp_path)
    known.keep("bookie", "zookeeper")
    theirs = [path for path in tmp_path.iterdir() if path.suffix in (".pem", ".key")]
    for path in theirs:
        os.chown(path, 12_345, 12_346)
    known.renew(["ca", "bookie", "zookeeper"])
    assert {(path.stat().st_uid, path.stat().st_gid) for path in theirs} == {(12_345, 12_346)}


@pytest.mark.parametrize("lost", ["ca.key", "another"])
def test_without_the_key_of_the_authority_nothing_is_made(tmp_path: Path, lost: str) -> None:
    known = Certificates(tmp_path / "security")
    known.keep("bookie")
    key = known.folder / "ca.key"
    if lost == "another":
        Authority(tmp_path / "other")
        key.write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    else:
        key.unlink()
    before = serials(known)
    assert known.keep("bookie") == [], "it is not needed yet"
    with pytest.raises(ConfigError, match=r"put (both|the right one) back"):
        known.renew(["bookie"])
    assert serials(known) == before


def test_who_runs_for_long_looks_once_an_hour_and_says_a_trouble_once(tmp_path: Path) -> None:
    wall, loop, said = At(), At(), list[str]()
    known = Certificates(tmp_path, wall)
    known.keep("bookie")
    renewing, before = Renewing(known, said.append, loop), serials(known)
    wall.now += DAYS * DAY_S
    renewing.look()
    assert (said, serials(known)) == ([], before), "it was looked at a moment ago"
    loop.now += LOOK_S
    renewing.look()
    assert (len(said), "bookie.pem was renewed" in said[0]) == (1, True)
    assert serials(known)["bookie"] != before["bookie"]
    (tmp_path / "ca.key").rename(tmp_path / "away")
    for _ in range(3):
        loop.now += LOOK_S
        renewing.look()
    assert (len(said), "could not be renewed" in said[1]) == (2, True)
    (tmp_path / "away").rename(tmp_path / "ca.key")
    loop.now += LOOK_S
    renewing.look()
    assert "bookie.pem was renewed" in said[2]


def test_what_a_lost_authority_signed_is_made_anew_with_another(tmp_path: Path) -> None:
    known = Certificates(tmp_path)
    known.keep("bookie", "gateway")
    known.file("ca").unlink()
    assert known.keep("bookie") == ["bookie", "gateway"]
    for name in ("bookie", "gateway"):
        verifies(known.file("ca").read_bytes(), known.file(name), time.time())
