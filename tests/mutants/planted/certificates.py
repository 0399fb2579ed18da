"""Bugs of certificates that end: which are made anew, and who learns of it."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_KEPT = "tests/cli/up/test_certificates.py::"

MUTANTS = (
    TestMutant(
        "certificate-renewed-when-it-has-ended",
        "a certificate is made anew when it has ended, and not before",
        edited(
            (
                "buckram.core.security.certificates:Life.due",
                "self.ends_s - now_s < (self.ends_s - self.begins_s) * RENEWED_LEFT",
                "self.ends_s <= now_s",
            )
        ),
        (_KEPT + "test_each_is_made_anew_when_less_than_a_third_of_its_life_is_left",),
    ),
    TestMutant(
        "authority-renewed-with-another-key",
        "the authority gets a new key with its new certificate, so that what it signed counts no more",
        edited(
            (
                "buckram.runtime.net.security.certificate_authority:Authority.renew",
                "self._certify(self._key, days)",
                "self._key = ec.generate_private_key(ec.SECP256R1())\n"
                "    write_private(self._key_file, _pem(self._key))\n"
                "    self._certify(self._key, days)",
            )
        ),
        (_KEPT + "test_an_authority_that_is_made_anew_counts_beside_the_one_before",),
    ),
    TestMutant(
        "certificate-of-zookeeper-half-renewed",
        "ZooKeeper's certificate is made anew, and not the file that it reads",
        edited(("buckram.cli.up.security_files:Certificates._make", 'if name == "zookeeper":', "if False:")),
        (_KEPT + "test_each_is_made_anew_when_less_than_a_third_of_its_life_is_left",),
    ),
    TestMutant(
        "certificate-in-use-stays",
        "a server goes on with the certificate that it began with",
        edited(
            ("buckram.runtime.net.security.certificate_files:TlsFiles.context", "if state != self._state:", "if False:")
        ),
        ("tests/serve/hrana/test_database_access.py::test_it_speaks_tls_with_the_certificate_of_the_moment",),
    ),
)
