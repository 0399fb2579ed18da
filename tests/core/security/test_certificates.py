"""The end of a certificate is read as the library for certificates reads it; what is none is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from buckram.core.security.certificates import Life, ends_s, life_of
from buckram.runtime.net.security.certificate_authority import Authority


@pytest.mark.parametrize("days", [-1.0, 7.0, 365.0 * 40])
def test_the_end_is_what_the_library_reads(tmp_path: Path, days: float) -> None:
    """In UTCTime until 2049, in GeneralizedTime from then on."""
    pem = Authority(tmp_path).bookie("b", ["127.0.0.1"], days=days).certificate.read_text()
    read = x509.load_pem_x509_certificate(pem.encode())
    begins, ends = read.not_valid_before_utc.timestamp(), read.not_valid_after_utc.timestamp()
    assert life_of(pem) == (begins, ends)
    assert ends_s(f"# a comment\n{pem}{pem}") == ends, "the first one counts"


def test_it_is_due_when_less_than_a_third_is_left() -> None:
    life = Life(1_000, 1_000 + 300)
    assert [now for now in (0, 1_200, 1_201, 1_299, 1_300, 9_999) if life.due(now)] == [1_201, 1_299, 1_300, 9_999]


def test_what_is_cut_off_is_refused(tmp_path: Path) -> None:
    pem = Authority(tmp_path).certificate.read_text().splitlines()
    body = "".join(pem[1:-1])
    texts = ["nothing", "", *("\n".join((pem[0], body[:cut], pem[-1])) for cut in range(0, len(body) - 4, 7))]
    for text in texts:
        with pytest.raises(ValueError, match=r"certificate|cut off|kind|Incorrect|time data"):
            ends_s(text)
