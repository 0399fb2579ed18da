"""Trust stores for Java: what is in them, where they go, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from buckram.errors import ConfigError, InvalidArgument
from buckram.runtime.net.security.certificate_authority import Authority
from buckram.spark.relay.hadoop_settings import JAVA_OPTIONS, settings
from buckram.spark.relay.trust_store import PASSWORD, java_options, write_trust_store

URI = "swebhdfs://10.0.0.7:8443/"


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """A file with the certificates of two authorities."""
    pem = b"".join(Authority(tmp_path / name).certificate.read_bytes() for name in ("one", "two"))
    path = tmp_path / "ca.pem"
    path.write_bytes(pem)
    return path


def test_all_authorities_of_a_file_are_in_the_store(ca: Path, tmp_path: Path) -> None:
    store = write_trust_store(ca, tmp_path / "new" / "store.p12")
    found = pkcs12.load_pkcs12(store.read_bytes(), PASSWORD.encode())
    assert (len(found.additional_certs), found.key) == (2, None)
    assert (store.stat().st_mode & 0o777, len(list(store.parent.iterdir()))) == (0o644, 1)


def test_a_store_of_the_cache_is_named_after_its_content(
    ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = write_trust_store(ca)
    written = first.read_bytes()
    assert (write_trust_store(ca), first.read_bytes()) == (first, written)
    ca.write_bytes((tmp_path / "one" / "ca.pem").read_bytes())
    assert write_trust_store(ca) != first


def test_the_jvms_of_driver_and_executors_are_given_the_store() -> None:
    chosen = settings(URI, trust_store=Path("/etc/spark/gateways.p12"))
    for name in JAVA_OPTIONS:
        assert chosen[name] == java_options(Path("/etc/spark/gateways.p12"))
        assert "-Djavax.net.ssl.trustStore=/etc/spark/gateways.p12 " in chosen[name]
    with pytest.raises(InvalidArgument, match="certificates are of use with swebhdfs:// only"):
        settings("webhdfs://10.0.0.7:8080/", trust_store=Path("/etc/spark/gateways.p12"))


def test_files_that_do_not_do_are_refused_by_name(ca: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.pem: No such file"):
        write_trust_store(tmp_path / "absent.pem")
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match=r"wrong\.pem: is no PEM file of certificates"):
        write_trust_store(wrong)
    with pytest.raises(InvalidArgument, match="no path with spaces"):
        write_trust_store(ca, tmp_path / "a store.p12")
    with pytest.raises(ConfigError, match=r"store\.p12: File exists; .*--trust-store"):
        write_trust_store(ca, ca / "store.p12")
