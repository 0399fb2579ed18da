"""Bugs of connections that become TLS, of logins and of what was withdrawn."""

from __future__ import annotations

from tests.mutants.testmutant import TestMutant, edited

_OPENING = "tests/core/wire/test_start_tls.py"
_LOGIN = "tests/bookie/service/security/test_login.py"

MUTANTS = (
    TestMutant(
        "login-ends-with-a-word-more",
        "an empty word behind a login, as Apache's v2 client says it, ends the connection",
        edited(
            ("buckram.core.wire.server_protocol:ServerProtocol._begins_anew", "if self._logged_in and", "if False and")
        ),
        (f"{_LOGIN}::test_a_word_more_that_gives_no_credential_is_answered_and_changes_nothing",),
    ),
    TestMutant(
        "opening-takes-a-word",
        "an AUTH with a payload in clear counts as the beginning of a login through TLS",
        edited(("buckram.core.wire.start_tls:begins_login", "not request.payload", "True")),
        (f"{_OPENING}::test_tls_begins_after_start_tls_and_an_empty_auth_and_after_nothing_else",),
    ),
    TestMutant(
        "opening-takes-two",
        "a second empty AUTH in clear takes the place of the first",
        edited(("buckram.core.wire.start_tls:Opening.take", "and self.begun is None", "")),
        (f"{_OPENING}::test_nothing_but_start_tls_may_follow_the_empty_auth",),
    ),
    TestMutant(
        "begun-is-answered-in-clear",
        "the challenge goes out before TLS has begun",
        edited(
            (
                "buckram.core.wire.server_protocol:ServerProtocol.answer_begun",
                "(opening.start_tls is not None and self._offers_tls)",
                "False",
            )
        ),
        (f"{_OPENING}::test_the_challenge_goes_through_tls",),
    ),
    TestMutant(
        "clear-answer-counts",
        "a client takes what came in clear behind the answer to START_TLS for an answer through TLS",
        edited(
            (
                "buckram.runtime.net.security.secure_network:_Preface.begin_tls",
                "self._packets or self._chunks.pending_bytes",
                "False",
            ),
        ),
        (
            "tests/runtime/net/security/test_secure_network.py::"
            "test_what_is_said_in_clear_behind_the_answer_to_start_tls_is_not_taken_for_the_bookies",
        ),
    ),
    TestMutant(
        "withdrawn-stays-connected",
        "connections of a withdrawn certificate go on",
        edited(
            (
                "buckram.bookie.service.security.bookie_security:BookieSecurity._sweep",
                "one.certificate is not None",
                "False",
            ),
        ),
        (f"{_LOGIN}::test_a_withdrawn_certificate_is_refused_and_ends_its_connections",),
        slow=True,
    ),
    TestMutant(
        "withdrawn-comes-back",
        "a withdrawn certificate logs in again, until the next look at all connections",
        edited(
            (
                "buckram.bookie.service.security.connection_gate:ConnectionGate._secured",
                "if self.guard is not None and",
                "if False and",
            ),
        ),
        (f"{_LOGIN}::test_a_withdrawn_certificate_is_refused_and_ends_its_connections",),
    ),
    TestMutant(
        "others-change-the-layout",
        "whoever has a login may change and delete what is no ledger",
        edited(("buckram.metadata.zookeeper.access_lists:others_may", 'return "r" if', 'return "cdrw" if')),
        ("tests/metadata/zookeeper/test_access_lists.py::test_others_use_the_ledger_tree_and_nothing_else",),
    ),
    TestMutant(
        "kernel-outweighs-the-token",
        "whoever is known by the kernel or by a certificate stays that one, whatever credential he gives",
        edited(
            (
                "buckram.core.wire.server_protocol:ServerProtocol._begins_anew",
                "provider is not None or bool(request.payload)",
                "False",
            )
        ),
        (f"{_LOGIN}::test_a_token_through_the_unix_socket_counts_and_not_who_sent_it",),
    ),
    TestMutant(
        "identity-changes-in-use",
        "a connection that has carried out requests becomes another principal's by a login",
        edited(("buckram.core.wire.server_protocol:ServerProtocol._auth_request", "if self._settled:", "if False:")),
        (f"{_LOGIN}::test_who_it_is_does_not_change_once_a_connection_is_in_use",),
    ),
    TestMutant(
        "sockets-anybody-may-enter",
        "Unix sockets are used in a directory that others may enter",
        edited(("buckram.runtime.net.local_sockets:_is_ours", "and not found.st_mode & 0o077", "")),
        ("tests/runtime/net/test_local_sockets.py::test_a_directory_that_others_may_enter_leaves_tcp",),
    ),
    TestMutant(
        "group-is-a-role",
        "a group of an issuer is a role of the same name, and so group admin an administrator",
        edited(("buckram.core.security.oidc:_token", "GROUP_ROLE + group", "group")),
        ("tests/core/security/test_oidc.py::test_nobody_is_an_administrator_but_by_a_group_that_is_named",),
    ),
    TestMutant(
        "issuers-alice-is-ours",
        "a subject of an issuer is the principal of the cluster's token for the same subject",
        edited(("buckram.core.security.oidc:_token", '_time(said, "exp"), OIDC)', '_time(said, "exp"))')),
        ("tests/core/security/test_oidc.py::test_a_good_token_is_its_subject_with_its_groups_as_roles",),
    ),
    TestMutant(
        "keys-asked-for-by-each-token",
        "whoever shows tokens with keys that do not exist has the issuer asked for each of them",
        edited(
            (
                "buckram.runtime.net.security.issuer_keys:IssuerKeys._ask_again",
                "_now() - self._began_at >= self._again_s",
                "True",
            )
        ),
        (
            "tests/runtime/net/security/test_issuer_keys.py::test_keys_that_do_not_exist_have_them_fetched_once_in_some_seconds",
        ),
    ),
    TestMutant(
        "keys-of-an-issuer-for-ever",
        "keys count however long their issuer is away",
        edited(
            (
                "buckram.runtime.net.security.issuer_keys:IssuerKeys.keys",
                "_now() - self._fetched_at < self.issuer.known_s",
                "True",
            )
        ),
        (
            "tests/runtime/net/security/test_issuer_keys.py::test_known_keys_count_while_the_issuer_is_away_and_not_for_ever",
        ),
    ),
)
